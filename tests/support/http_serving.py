"""Serve HTTP from a thread of the test, on a free port of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def http_serving(handler: type[BaseHTTPRequestHandler], **shared: Any) -> Iterator[int]:
    """Serve, and give the port.

    Args:
        handler: Answers requests.
        shared: What all its instances have in common, as attributes.
    """
    # Otherwise a body waits 40 ms for the headers before it to be acknowledged.
    own = type(handler.__name__, (handler,), {"disable_nagle_algorithm": True, **shared})
    server = ThreadingHTTPServer(("127.0.0.1", 0), own)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="http-serving")
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
