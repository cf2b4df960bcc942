"""Serve the metrics over HTTP.

A scrape takes milliseconds. So if there are many connections, most of them belong to clients that
send no request, or do not read the answer; the oldest is closed for a new one.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from headrace.errors import ConfigurationError
from headrace.server.settings.server_config import split_address

# More than scrape an endpoint at once (arbitrary).
_MOST_CONNECTIONS = 32
# The pause while no descriptor is free (arbitrary): a connection that waits is ready all the time.
_PAUSE_S = 0.25

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricsEndpoint:
    """A running endpoint.

    Attributes:
        address: ``host:port``.
    """

    address: str
    server: WSGIServer
    thread: threading.Thread

    def close(self) -> None:
        """Stop answering, and end the thread."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def start_metrics_endpoint(address: str, registry: CollectorRegistry) -> MetricsEndpoint:
    """Serve a registry at ``host:port``; port 0 takes a free one.

    Raises:
        ConfigurationError: The address cannot be bound.
    """
    host, port = split_address(address)
    try:
        server = _Server(host, port)
    except OSError as error:
        raise ConfigurationError(
            f"cannot serve metrics on {address} ({error.strerror}); choose another address",
            address=address,
        ) from error
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever, name="headrace-metrics", daemon=True)
    thread.start()
    return MetricsEndpoint(f"{host}:{server.server_port}", server, thread)


class _Handler(WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        """Log nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each request in a thread of its own."""

    daemon_threads = True
    # With five, connections of a burst wait for seconds until they are tried again.
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, place = found[0]
        self._lock = threading.Lock()
        self._connections: deque[Any] = deque()
        super().__init__((str(place[0]), port), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.append(request)
            if len(self._connections) > _MOST_CONNECTIONS:
                with suppress(OSError):  # its client has closed it already
                    self._connections.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, suppress(ValueError):
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        _log.debug("a connection to the metrics has failed", exc_info=True)
