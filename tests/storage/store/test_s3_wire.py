"""Answers over connections of our own: what is known, what is not, and what breaks off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError

from headrace.storage.store.s3_wire import OtherAnswerError, PlainWire, Reply

_HELLO = b"HTTP/1.1 206 Partial Content\r\nETag: x\r\nContent-Length: 5\r\n\r\nhello"
_REPLY = Reply(206, {"etag": "x", "content-length": "5"}, b"hello")


@contextmanager
def _store(*connections: Sequence[bytes]) -> Iterator[PlainWire]:
    """A store that takes so many connections, answers so over each, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def serve() -> None:
            for answers in connections:
                connection, _ = listener.accept()
                with connection:
                    for answer in answers:
                        connection.recv(65536)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, name="store")
        thread.start()
        with closing(_wire(listener.getsockname())) as wire:
            yield wire
            thread.join(60)
            assert not thread.is_alive()


def _wire(address: tuple[str, int]) -> PlainWire:
    return PlainWire(
        "http://store", address, connect_timeout_s=10, read_timeout_s=10, max_connections=2
    )


def _get(wire: PlainWire) -> Reply:
    return wire.get("/flowers/x", {"host": "store", "range": "bytes=3-7"}, most_bytes=5)


def test_a_connection_is_used_again() -> None:
    """Two answers come over one connection, whole."""
    with _store([_HELLO, _HELLO]) as wire:
        assert [_REPLY] * 2 == [_get(wire), _get(wire)]


def test_a_connection_that_was_closed_costs_nothing() -> None:
    """What the store closed after its answer is noticed, and the request made again."""
    with _store([_HELLO], [_HELLO]) as wire:
        assert [_REPLY] * 2 == [_get(wire), _get(wire)]


def test_a_connection_that_is_to_be_closed_is_not_kept() -> None:
    """As the store says in its answer."""
    closed = _HELLO.replace(b"ETag: x", b"Connection: Close")
    with _store([closed], [_HELLO]) as wire:
        assert [b"hello"] * 2 == [_get(wire).content, _get(wire).content]


@pytest.mark.parametrize("padding", [4000, 4070, 5000, 20_000])
def test_long_headers_are_read(padding: int) -> None:
    """Headers of several reads, which end anywhere."""
    with _store([_HELLO.replace(b"ETag: x", b"ETag: " + b"x" * padding)]) as wire:
        reply = _get(wire)

    assert ("x" * padding, b"hello") == (reply.headers["etag"], reply.content)


@pytest.mark.parametrize(
    "answer",
    [
        _HELLO.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        _HELLO.replace(b"ETag: x", b"Transfer-Encoding: chunked"),
        _HELLO.replace(b"Content-Length: 5\r\n", b""),
        _HELLO.replace(b"Length: 5", b"Length: 6"),
        _HELLO.replace(b"Length: 5", b"Length: -5"),
        _HELLO.replace(b"1.1 206", b"1.0 206"),
        _HELLO.replace(b"206 Partial", b"100 Continue"),
        _HELLO.replace(b"206 Partial", b"503 Busy").replace(b"Length: 5", b"Length: 99999"),
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nETag: x",
        b"x" * 100_000 + b"\r\n\r\n",
    ],
)
def test_other_answers_are_left_to_others(answer: bytes) -> None:
    """An answer that is not known is no bytes, and nothing is asked for here any more."""
    with _store([answer]) as wire:
        with pytest.raises(OtherAnswerError):
            _get(wire)

        assert not wire.is_understood


@pytest.mark.parametrize("missing", [1, 5])
def test_an_answer_that_breaks_off_is_no_answer(missing: int) -> None:
    """Fewer bytes than stated are an error that is tried again."""
    with _store([_HELLO[:-missing]]) as wire, pytest.raises(ConnectionClosedError):
        _get(wire)


def test_a_store_that_hangs_up_is_told() -> None:
    """Twice nothing: the second time on a fresh connection, so it is no stale one."""
    with _store([_HELLO], [b""]) as wire:
        _get(wire)
        with pytest.raises(ConnectionClosedError):
            _get(wire)


def test_errors_come_with_their_text() -> None:
    """A refusal is an answer too, and the connection stays."""
    busy = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 4\r\n\r\nbusy"
    with _store([busy, _HELLO]) as wire:
        refused = _get(wire)

        assert (503, b"busy") == (refused.status, refused.content)
        assert _REPLY == _get(wire)


def test_a_store_that_is_not_there_is_told() -> None:
    """Nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with closing(_wire(address)) as wire, pytest.raises(EndpointConnectionError):
        _get(wire)


def test_a_header_of_two_lines_is_not_sent() -> None:
    """No value can put a header of its own into a request."""
    with closing(_wire(("127.0.0.1", 9))) as wire, pytest.raises(OtherAnswerError):
        wire.get("/x", {"range": "bytes=0-1\r\nx: y"}, most_bytes=2)
