"""An answer that will not change is asked for once, names what is missing, and leaves nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.converter import convert_files
from headrace.errors import StoreRefusedError
from headrace.storage import StoreOptions, open_store

_LACKING = (
    b"<Error><Code>NotImplemented</Code><Message>A header you provided implies functionality "
    b"that is not implemented</Message></Error>"
)


class _Unconditional(BaseHTTPRequestHandler):
    """A store that knows objects and listings, but no conditional writes."""

    protocol_version = "HTTP/1.1"
    server: _Store

    def do_GET(self) -> None:
        """Give an object, or a listing that is empty."""
        if "list-type" in self.path:
            self._answer(HTTPStatus.OK, b"<ListBucketResult></ListBucketResult>")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_HEAD(self) -> None:
        """Give no body."""
        self.do_GET()

    def do_PUT(self) -> None:
        """Keep an object, except on a condition."""
        self.rfile.read(int(self.headers["Content-Length"]))
        is_conditional = "If-None-Match" in self.headers or "If-Match" in self.headers
        self.server.puts.append((self.path, is_conditional))
        if is_conditional:
            self._answer(HTTPStatus.NOT_IMPLEMENTED, _LACKING)
        else:
            self._answer(HTTPStatus.OK, b"")

    def do_DELETE(self) -> None:
        """Say that it is gone."""
        self._answer(HTTPStatus.NO_CONTENT, b"")

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class _Store(ThreadingHTTPServer):
    puts: list[tuple[str, bool]]


@pytest.fixture
def unconditional() -> Iterator[_Store]:
    """Run such a store; no real one at hand refuses conditions."""
    with _Store(("127.0.0.1", 0), _Unconditional) as server:
        server.puts = []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="unconditional")
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


def _options(server: _Store) -> StoreOptions:
    return StoreOptions(
        endpoint=f"http://127.0.0.1:{server.server_address[1]}",
        region="us-east-1",
        access_key="a",
        secret_key="b",  # noqa: S106 - of no store
    )


def test_a_store_without_conditional_writes_is_refused_before_a_conversion(
    unconditional: _Store, tmp_path: Path
) -> None:
    """One request finds it out, and no shard is written."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')

    with pytest.raises(StoreRefusedError, match=r"no conditional writes \(IfNoneMatch\).*\(501 "):
        convert_files(
            str(tmp_path / "a.jsonl"),
            "s3://bucket/d",
            source_format="json",
            options=_options(unconditional),
        )
    assert [True] == [is_conditional for _, is_conditional in unconditional.puts]


def test_what_a_store_lacks_is_asked_for_once(unconditional: _Store) -> None:
    """A commit by hand is refused with the words of the store, and not tried again."""
    store = open_store("s3://bucket/d", options=_options(unconditional))
    store.write("x", b"")

    with pytest.raises(StoreRefusedError, match="functionality that is not implemented"):
        store.write_if_absent("y", b"")
    assert 2 == len(unconditional.puts)
