"""A store that says what it was asked over the wire, and answers as it is told."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.storage import RetryPolicy, Store, StoreOptions, open_store

FAST_RETRY = RetryPolicy(attempts=4, base_s=0.001)
CUT = 1206
"""In place of a status: 206, and a body that breaks off."""

CUT_ERROR = 1403
"""In place of a status: 403, and a body in chunks that breaks off."""

TRICKLE = 2000
"""Added to a status: a body of 40 bytes, one every 0.2 s."""

_OBJECT = b"hello"
_KEY = re.compile(r"Credential=(\w+)/")


class _Recording(BaseHTTPRequestHandler):
    """Keeps the headers of each request and answers with the server's next status."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for its headers to be acknowledged
    requests: list[dict[str, str]]
    statuses: list[int]
    refusals: dict[str, tuple[int, str]]

    def do_GET(self) -> None:
        """Answer once."""
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.requests.append({**headers, ":path": self.path})
        signed = _KEY.search(headers.get("authorization", ""))
        if signed is not None and signed[1] in self.refusals:
            self._refuse(*self.refusals[signed[1]])
            return
        status = self.statuses.pop(0) if self.statuses else (206 if "range" in headers else 200)
        if status == CUT_ERROR:
            self._refuse_in_part()
            return
        if status > TRICKLE:
            self._trickle(status - TRICKLE)
            return
        first, last = _part(headers.get("range", "bytes=0-"))
        body = {200: _OBJECT, 206: _OBJECT[first : last + 1]}.get(status, b"")
        self.send_response(206 if status == CUT else status)
        self.send_header("Content-Length", "5" if status == CUT else str(len(body)))
        if status in {206, CUT}:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(_OBJECT)}")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = status == CUT

    def _refuse(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse_in_part(self) -> None:
        self.send_response(403)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"100\r\n<Error>")
        self.close_connection = True

    def _trickle(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "40")
        self.end_headers()
        with suppress(OSError):
            for _ in range(40):
                self.wfile.write(b"x")
                time.sleep(0.2)
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def _part(header: str) -> tuple[int, int]:
    first, _, last = header.removeprefix("bytes=").partition("-")
    end = len(_OBJECT) - 1
    return int(first), min(int(last), end) if last else end


class RecordingStore:
    """An HTTP server that says what it was asked.

    Attributes:
        requests: The headers of each request, by names in lower case, and its ``:path``.
        statuses: With which statuses the next requests are answered.
        refusals: The keys that are refused, with a status and a code of S3.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.refusals: dict[str, tuple[int, str]] = {}
        shared = {
            "requests": self.requests,
            "statuses": self.statuses,
            "refusals": self.refusals,
        }
        handler = type("_Handler", (_Recording,), shared)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="recording-store"
        )
        self._thread.start()
        self.port = int(self._server.server_address[1])

    def used_keys(self) -> list[str]:
        """Return the key of each request that was signed."""
        found = (_KEY.search(sent.get("authorization", "")) for sent in self.requests)
        return [match[1] for match in found if match]

    def store(self, **options: Any) -> Store:
        """Open a store of the bucket ``flowers`` there."""
        given = {"endpoint": f"http://127.0.0.1:{self.port}", "region": "us-east-1"} | options
        return open_store("s3://flowers/x", options=StoreOptions(retry=FAST_RETRY, **given))

    def stop(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


@contextmanager
def recording_store(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[RecordingStore]:
    """Run a recording store, in an environment without any AWS settings.

    Args:
        monkeypatch: Of the test.
        folder: Where boto3 looks for ``credentials`` and ``config``.
    """
    for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{part}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    running = RecordingStore()
    try:
        yield running
    finally:
        running.stop()
