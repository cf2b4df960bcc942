"""A small store with latency: it answers ranged GETs of a folder as S3 does, and counts them.

``python tests/benchmarks/range_server.py FOLDER [--delay-ms 20]`` prints its address; a path is
``/bucket/key``, the bucket is not looked at. Each answer's first byte waits for the delay.
Signatures are not checked, nothing can be listed or written. ``GET /__stats`` says as JSON how many
GETs of shards came and how many bytes they took, and how many other requests.

SeaweedFS takes more processor time than the reader does, and has no latency.
"""

from __future__ import annotations

import argparse
import email.utils
import json
import os
import re
import threading
import time
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
_ABSENT = b"<Error><Code>NoSuchKey</Code></Error>"


class _Counts:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"gets": 0, "bytes": 0, "others": 0}

    def add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def text(self) -> bytes:
        with self._lock:
            return json.dumps(self._counts).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, folder: Path, delay_s: float, counts: _Counts, *arguments: object) -> None:
        self._folder, self._delay_s, self._counts = folder, delay_s, counts
        super().__init__(*arguments)  # type: ignore[arg-type]  # what the server passes on

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/__stats":
            self._send(HTTPStatus.OK, {}, self._counts.text())
            return
        _, _, key = path.lstrip("/").partition("/")
        time.sleep(self._delay_s)
        try:
            self._send_part(key, self._folder / key)
        except (FileNotFoundError, IsADirectoryError):
            self._counts.add(others=1)
            self._send(HTTPStatus.NOT_FOUND, {"Content-Type": "application/xml"}, _ABSENT)

    def _send_part(self, key: str, path: Path) -> None:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            first, stop, status = 0, found.st_size, HTTPStatus.OK
            headers = {
                "ETag": f'"{found.st_ino:x}-{found.st_size:x}"',
                "Last-Modified": email.utils.formatdate(found.st_mtime, usegmt=True),
            }
            if wanted := _RANGE.match(self.headers.get("Range", "")):
                first, status = int(wanted[1]), HTTPStatus.PARTIAL_CONTENT
                stop = min(stop, int(wanted[2]) + 1) if wanted[2] else stop
                headers["Content-Range"] = f"bytes {first}-{stop - 1}/{found.st_size}"
            is_shard = key.endswith(".arrow") and self.command == "GET"
            amounts = {"gets": 1, "bytes": stop - first} if is_shard else {"others": 1}
            self._counts.add(**amounts)
            self._send_head(status, headers, stop - first)
            if self.command == "GET":
                self.wfile.flush()
                while first < stop:
                    first += os.sendfile(
                        self.connection.fileno(), file.fileno(), first, stop - first
                    )

    def _send(self, status: HTTPStatus, headers: dict[str, str], body: bytes) -> None:
        self._send_head(status, headers, len(body))
        if self.command == "GET":
            self.wfile.write(body)

    def _send_head(self, status: HTTPStatus, headers: dict[str, str], length: int) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of readers that have gone."""


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    given = parser.parse_args()
    handler = partial(_Handler, given.folder, given.delay_ms / 1000, _Counts())
    with _Server(("127.0.0.1", 0), handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
