"""MosaicML Streaming: two workers read each other's answers from a store.

``.build/peers/bin/python tests/exam/findings/mosaic_fork.py``

The trainer fetches index.json before it forks its workers, by a client that keeps its connection.
Both workers inherit that, and take from it whatever answer comes first.
"""

import os
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from streaming.base.storage import CloudDownloader  # type: ignore[import-not-found]

_SIZE = 1_000_000
_TRIALS = 10


class _Server(ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """Say nothing of connections that a worker has left."""


class _Store(BaseHTTPRequestHandler):
    """Each file has one byte again and again, which is its name; answers take 50 ms."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        time.sleep(0.05)
        self.send_response(200)
        self.send_header("Content-Length", str(_SIZE))
        self.send_header("ETag", '"1"')
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(bytes([int(self.path[-1])]) * _SIZE)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def _read(downloader: Any, number: int, folder: str, start: float) -> bool:
    """Download a file in a worker, and return whether that is what came."""
    time.sleep(max(0.0, start - time.time()))
    path = Path(folder, f"{number}")
    downloader.download(f"s3://bucket/{number}", str(path), 60.0)
    return set(path.read_bytes()) == {number}


def _forked(downloader: Any, number: int, folder: str, start: float) -> int:
    pid = os.fork()
    if pid:
        return pid
    end = threading.Timer(10.0, os._exit, (2,))
    end.start()
    try:
        os._exit(0 if _read(downloader, number, folder, start) else 1)
    finally:
        os._exit(2)


def main() -> None:
    """Print what came, in ten trials of two workers."""
    server = _Server(("127.0.0.1", 0), _Store)
    if not (serving := os.fork()):
        server.serve_forever()
    os.environ["S3_ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_port}"
    os.environ.update(dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "nobody"))
    codes = Counter[int]()
    for _ in range(_TRIALS):
        with tempfile.TemporaryDirectory() as folder:
            downloader = CloudDownloader.get("s3://bucket/")
            downloader.download("s3://bucket/0", f"{folder}/0", 60.0)  # as index.json
            start = time.time() + 0.3
            workers = [_forked(downloader, number, folder, start) for number in (1, 2)]
            codes.update(os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in workers)
    os.kill(serving, 9)
    print(f"{codes[0]} files are right, {codes[1]} have other bytes, {codes[2]} failed or hung")


main()
