"""Stand before a real S3 store, and throttle, fail and cut off some of its answers."""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_TIMEOUT_S = 30
_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>"


class ThrottlingStore:
    """Passes requests on as they are, so that their signatures hold.

    Attributes:
        endpoint: Where clients connect.
        requests: Requests so far.
        refused: Those answered with 503 SlowDown.
        cut: Those whose answer was broken off in the middle.
    """

    def __init__(self, upstream: str, *, refuse: float, cut: float, seed: int) -> None:
        self._upstream = urlsplit(upstream)
        self._odds = (refuse, cut)
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.requests = self.refused = self.cut = 0
        handler = type("_Handler", (_Relay,), {"store": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="throttling-store")
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def connect(self) -> http.client.HTTPConnection:
        """Connect to the real store."""
        assert self._upstream.hostname is not None
        return http.client.HTTPConnection(
            self._upstream.hostname, self._upstream.port, timeout=_TIMEOUT_S
        )

    def fate(self) -> str:
        """Say what becomes of the next request."""
        with self._lock:
            self.requests += 1
            refuse, cut = self._odds
            drawn = self._random.random()
            if drawn < refuse:
                self.refused += 1
                return "refuse"
            if drawn < refuse + cut:
                self.cut += 1
                return "cut"
            return "pass"

    def stop(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ThrottlingStore

    def do_GET(self) -> None:
        """Answer a read."""
        self._relay()

    def do_HEAD(self) -> None:
        """Answer a look."""
        self._relay()

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def _relay(self) -> None:
        fate = self.store.fate()
        if fate == "refuse":
            self._answer(503, {}, _SLOW_DOWN)
            return
        upstream = self.store.connect()
        try:
            upstream.request(self.command, self.path, headers=dict(self.headers.items()))
            response = upstream.getresponse()
            body = response.read()
        finally:
            upstream.close()
        headers = {
            name: value
            for name, value in response.getheaders()
            if name.lower() not in ("connection", "transfer-encoding", "content-length")
        }
        length = response.getheader("Content-Length") or str(len(body))
        self._answer(response.status, headers, body, length=length, cut=fate == "cut")

    def _answer(
        self,
        status: int,
        headers: dict[str, str],
        body: bytes,
        *,
        length: str = "",
        cut: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut


@contextmanager
def throttling(upstream: str, *, refuse: float, cut: float, seed: int) -> Iterator[ThrottlingStore]:
    """Run one.

    Args:
        upstream: The real store's endpoint.
        refuse: Share of requests that get 503 SlowDown.
        cut: Share of answers that break off.
        seed: Of the choice.
    """
    store = ThrottlingStore(upstream, refuse=refuse, cut=cut, seed=seed)
    try:
        yield store
    finally:
        store.stop()
