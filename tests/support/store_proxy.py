"""An HTTP proxy in front of a real object store, on which the store's faults are played."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal[
    "pass",
    "throttle",
    "reset",
    "cut",
    "short",
    "altered",
    "down",
    "silent",
    "stall",
    "trickle",
    "mixed",
    "stale",
    "unstated",
    "hidden",
]
"""What becomes of a request.

As by a cache that confuses its keys, ``mixed`` is the first answer for another part of the object
with as many bytes, and ``stale`` the first answer for the same part; ``unstated`` does not state
its range. ``hidden`` is a refusal in place of absence, as for a role that may not list.
"""

_HIDDEN = b"<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>"
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_UPSTREAM_TIMEOUT_S = 30

# One byte in this many is altered: in each block, if several come in one answer.
_ALTERED_STEP = 512

# Between two bytes of an answer that trickles (arbitrary).
_TRICKLE_S = 0.1

_Answer = tuple[int, dict[str, str], bytes]


class StoreProxy:
    """Passes requests on with their signatures, until it is told to do something else.

    Attributes:
        endpoint: Where clients connect.
        choose: Says what becomes of the GET of a part of an object, by its path and range.
        choose_whole: Says what becomes of all other requests, by their path.
        delay_s: How long the store takes for each part.
        seen: The parts that were asked for, one entry a request.
        met: How many requests met each fault.
        kept: The first answer for each part, if it is a dictionary; for ``mixed`` and ``stale``.
    """

    def __init__(self, upstream: str) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.upstream = urlsplit(upstream).netloc
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.choose: Callable[[str], Fault] = lambda _: "pass"
        self.choose_whole: Callable[[str], Fault] = lambda _: "pass"
        self.seen: list[str] = []
        self.met = Counter[Fault]()
        self._lock = threading.Lock()
        self._down = threading.Event()
        self._closed = threading.Event()
        self.delay_s = 0.0
        self.kept: dict[tuple[str, str | None], _Answer] | None = None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="store-proxy"
        )
        self._thread.start()

    def once_each(self, fault: Fault, *, where: str = "") -> None:
        """Let the first request for each part fail, and the next one pass.

        Args:
            fault: How it fails.
            where: What the path of an object holds for this to be.
        """
        met = set[str]()

        def choose(part: str) -> Fault:
            with self._lock:
                is_first = part not in met
                met.add(part)
            return fault if is_first and where in part else "pass"

        self.choose = choose

    def at_random(self, odds: dict[Fault, float], *, seed: int) -> None:
        """Let each request, whatever it asks for, meet a fault by chance.

        Args:
            odds: How likely each fault is.
            seed: Of the chance.
        """
        chance = random.Random(seed)

        def choose(_: str) -> Fault:
            with self._lock:
                [drawn] = chance.choices(["pass", *odds], [1 - sum(odds.values()), *odds.values()])
                return drawn

        self.choose = self.choose_whole = choose

    def go_down(self) -> None:
        """Break every connection off, also those of listings and manifests."""
        self._down.set()

    def come_back(self) -> None:
        """Answer again."""
        self._down.clear()

    def fault_of(self, path: str, part: str | None) -> Fault:
        """Return what becomes of a request."""
        if self._down.is_set():
            return "down"
        if part is None:
            return self._counted(self.choose_whole(path))
        key = f"{path} {part}"
        self.seen.append(key)
        if self.delay_s:
            self.wait(self.delay_s)
        return self._counted(self.choose(key))

    def answer_of(self, fault: Fault, path: str, part: str | None, true: _Answer) -> _Answer:
        """Return the answer that is sent for the store's own one, and keep that."""
        status, headers, body = true
        if fault == "unstated":
            return status, {k: v for k, v in headers.items() if k != "Content-Range"}, body
        if fault == "hidden" and status == HTTPStatus.NOT_FOUND:
            return HTTPStatus.FORBIDDEN, {"Content-Length": str(len(_HIDDEN))}, _HIDDEN
        if self.kept is None:
            return true
        kept = self.kept.setdefault((path, part), true)
        if fault == "stale":
            return kept
        same_size = (
            found
            for (place, other), found in self.kept.items()
            if place == path and other != part and len(found[2]) == len(body)
        )
        return next(same_size, true) if fault == "mixed" else true

    def wait(self, seconds: float | None = None) -> bool:
        """Wait, for ever if nothing is said; return whether the proxy was closed meanwhile."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        self._server.shutdown()
        self._thread.join(60)
        self._server.server_close()

    def _counted(self, fault: Fault) -> Fault:
        with self._lock:
            self.met[fault] += 1
        return fault


@contextmanager
def store_proxied(upstream: str) -> Iterator[StoreProxy]:
    """Run a proxy in front of a store."""
    proxy = StoreProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with five, some of a burst of connections wait for a second or more
    proxy: StoreProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that a fault has broken."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two packets, and the second is not to wait for word of the first.
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._upstream = http.client.HTTPConnection(
            self.server.proxy.upstream, timeout=_UPSTREAM_TIMEOUT_S
        )

    def finish(self) -> None:
        self._upstream.close()
        with contextlib.suppress(OSError):
            super().finish()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        proxy = self.server.proxy
        fault = proxy.fault_of(self.path, self.headers.get("Range"))
        if fault == "silent":
            proxy.wait()
        if fault in {"down", "silent"}:
            _reset(self.connection)
            self.close_connection = True
            return
        if fault == "throttle":
            self._send(503, {"Content-Type": "application/xml"}, _BUSY, stated=len(_BUSY))
            return
        self._upstream.request(self.command, self.path, headers=dict(self.headers))
        answer = self._upstream.getresponse()
        body = answer.read()
        headers = {key.title(): value for key, value in answer.getheaders()}
        headers.pop("Connection", None)
        headers.pop("Keep-Alive", None)
        part = self.headers.get("x-ms-range") or self.headers.get("Range")
        found = proxy.answer_of(fault, self.path, part, (answer.status, headers, body))
        self._answer(fault, *found)

    def _answer(self, fault: Fault, status: int, headers: dict[str, str], body: bytes) -> None:
        headers = dict(headers)
        stated = int(headers.pop("Content-Length", len(body)))
        half = len(body) // 2
        if fault == "altered":
            altered = bytearray(body)
            altered[half % _ALTERED_STEP :: _ALTERED_STEP] = bytes(
                byte ^ 0xFF for byte in altered[half % _ALTERED_STEP :: _ALTERED_STEP]
            )
            body = bytes(altered)
        elif fault == "short":
            # Less than the first block where several come in one answer.
            body = body[: len(body) // 16]
            stated = len(body)
        if fault in {"reset", "cut", "stall", "trickle"}:
            self._send(status, headers, body[:half], stated=stated)
            self._break_off(fault, body[half:])
            return
        self._send(status, headers, body, stated=stated)

    def _break_off(self, fault: Fault, rest: bytes) -> None:
        """End an answer whose first half is sent."""
        proxy = self.server.proxy
        self.close_connection = True
        if fault == "stall":
            proxy.wait()
        elif fault == "trickle":
            for byte in rest:
                if proxy.wait(_TRICKLE_S):
                    break
                self.wfile.write(bytes([byte]))
        if fault != "cut":
            _reset(self.connection)

    def _send(self, status: int, headers: dict[str, str], body: bytes, *, stated: int) -> None:
        self.send_response_only(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(stated))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


def _reset(connection: socket.socket) -> None:
    # Closing with a linger of nothing sends RST.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RD)
