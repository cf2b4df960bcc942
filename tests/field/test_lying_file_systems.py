"""Answers that fsspec's file systems get over HTTP are checked like those of S3."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headrace.errors import ShardCorruptError, StoreUnavailableError
from headrace.storage import RetryPolicy, Store, StoreOptions, open_store
from headrace.storage.store.byte_range import ByteRange, WrongBytesError
from headrace.storage.store.foreign.answers import RangeAnswer, checked

_OBJECT = bytes(range(256)) * 4


def _seen(first: int, length: int, stated: str) -> RangeAnswer:
    return RangeAnswer(ByteRange(first, length), 206, {"content-range": stated})


def test_each_part_of_a_divided_request_is_checked() -> None:
    """A file system may ask for a range in parts, in any order."""
    right = [_seen(4, 2, "bytes 4-5/9"), _seen(0, 4, "bytes 0-3/9")]
    wrong = [_seen(4, 2, "bytes 0-1/9"), _seen(0, 4, "bytes 0-3/9")]

    assert b"abcdef" == checked(b"abcdef", ByteRange(0, 6), right)
    assert b"abcdef" == checked(b"abcdef", ByteRange(0, 6), [])
    with pytest.raises(WrongBytesError, match=r"bytes 0-1/9' found, for bytes=4-5"):
        checked(b"abcdef", ByteRange(0, 6), wrong)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        """Describe the object."""
        self.do_GET()

    def do_GET(self) -> None:
        """Give a part of the object, or what the server's mode says in its place."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        body, stated = _OBJECT, ""
        if asked and self.server.mode != "whole":
            first, last = int(asked[1]), min(int(asked[2] or 1023), 1023)
            if self.server.mode == "mixed":
                first, last = 0, last - first
            body, stated = _OBJECT[first : last + 1], f"bytes {first}-{last}/1024"
        self.send_response(206 if stated else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", self.server.tag)
        if stated and self.server.mode != "unstated":
            self.send_header("Content-Range", stated)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    mode = "right"
    tag = '"first"'


@pytest.fixture
def server() -> Iterator[_Server]:
    """A web server with one object, which answers as it is told."""
    pytest.importorskip("aiohttp", reason="fsspec reads HTTP with it")
    with _Server(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), name="web")
        thread.start()
        yield running
        running.shutdown()
        thread.join(60)


def _store(server: _Server) -> Store:
    url = f"http://127.0.0.1:{server.server_address[1]}/d"
    return open_store(url, options=StoreOptions(retry=RetryPolicy(attempts=2, base_s=0.001)))


@pytest.mark.parametrize("mode", ["mixed", "unstated"])
def test_another_range_is_refused(server: _Server, mode: str) -> None:
    """A cache confuses ranges of the same length."""
    store = _store(server)
    assert _OBJECT[300:304] == store.read("x", offset=300, length=4)
    server.mode = mode

    with pytest.raises(StoreUnavailableError, match=r"Content-Range .* for bytes=300-303"):
        store.read("x", offset=300, length=4)


def test_of_a_whole_object_the_range_is_taken(server: _Server) -> None:
    """Many simple servers ignore ranges."""
    store = _store(server)
    server.mode = "whole"

    assert _OBJECT[300:304] == store.read("x", offset=300, length=4)
    assert _OBJECT[1020:] == store.read("x", offset=1020)


def test_another_version_is_refused(server: _Server) -> None:
    """An object that was replaced after it was listed is not read on."""
    store = _store(server)
    entry = store.entry("x")
    assert entry is not None
    server.tag = '"second"'

    with pytest.raises(ShardCorruptError, match=r"x in .* has changed"):
        store.read_entry(entry, offset=300, length=4)
