"""Serve the metrics over HTTP."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from headrace.errors import ConfigurationError
from headrace.server.settings.server_config import split_address


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
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigurationError(
            f"cannot serve metrics on {address} ({error.strerror}); choose another address",
            address=address,
        ) from error
    return MetricsEndpoint(f"{host}:{server.server_port}", server, thread)
