"""Answers over connections of our own: what is known, what is not, and what breaks off."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from typing import Protocol

import pytest
import trustme
from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from headrace.storage.store.s3.connection import tls_context
from headrace.storage.store.s3.wire import OtherAnswerError, Reply, Wire

_HELLO = b"HTTP/1.1 206 Partial Content\r\nETag: x\r\nContent-Length: 5\r\n\r\nhello"
_REPLY = Reply(206, {"etag": "x", "content-length": "5"}, b"hello")


_AUTHORITY = trustme.CA()


class Store(Protocol):
    """What starts a store."""

    def __call__(self, *connections: Sequence[bytes]) -> AbstractContextManager[Wire]:
        """Start a server that sends its answers over each connection, one after another."""


@pytest.fixture(params=["plain", "tls"])
def store(request: pytest.FixtureRequest) -> Store:
    """A store in clear text, and one over TLS."""
    return partial(_store, host="127.0.0.1" if request.param == "tls" else "")


@contextmanager
def _store(
    *connections: Sequence[bytes],
    host: str,
    timeout_s: float = 10,
    pause_s: float = 0.0,
    at_once: int = 0,
    is_silent: bool = False,
    in_clear: bytes = b"none",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Wire]:
    """A store that is certified as a host, if that has a name.

    It sends byte by byte after the first ones if there is to be a pause between them; if it is
    silent, it leaves the end of a connection to others; what it sends in clear goes without TLS.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def serve() -> None:
            for answers in connections:
                connection, _ = listener.accept()
                with connection, suppress(OSError), _secured(connection, host) as secured:
                    for answer in answers:
                        secured.recv(65536)
                        if answer == in_clear:
                            socket.socket.sendall(secured, answer)
                        elif pause_s:
                            secured.sendall(answer[:at_once])
                            for byte in answer[at_once:]:
                                secured.sendall(bytes([byte]))
                                time.sleep(pause_s)
                        else:
                            secured.sendall(answer)
                    if is_silent:
                        secured.recv(1)

        thread = threading.Thread(target=serve, name="store")
        thread.start()
        with closing(_wire(listener.getsockname(), host, timeout_s=timeout_s, clock=clock)) as wire:
            yield wire
            thread.join(60)
            assert not thread.is_alive()


def _secured(connection: socket.socket, host: str) -> socket.socket:
    if not host:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _AUTHORITY.issue_cert(host).configure_cert(context)
    return context.wrap_socket(connection, server_side=True)


def _wire(
    address: tuple[str, int],
    host: str = "",
    *,
    timeout_s: float = 10,
    clock: Callable[[], float] = time.monotonic,
) -> Wire:
    with _AUTHORITY.cert_pem.tempfile() as certificates:
        return Wire(
            "http://store",
            address,
            context=tls_context(certificates) if host else None,
            connect_timeout_s=timeout_s,
            read_timeout_s=timeout_s,
            max_connections=2,
            clock=clock,
        )


def _get(wire: Wire) -> Reply:
    return wire.get("/flowers/x", {"host": "store", "range": "bytes=3-7"}, max_bytes=5)


def test_a_connection_is_used_again(store: Store) -> None:
    """Two answers come over one connection, whole."""
    with store([_HELLO, _HELLO]) as wire:
        assert [_REPLY] * 2 == [_get(wire), _get(wire)]


def test_a_connection_that_was_closed_costs_nothing(store: Store) -> None:
    """What the store closed after its answer is noticed, and the request made again."""
    with store([_HELLO], [_HELLO]) as wire:
        assert [_REPLY] * 2 == [_get(wire), _get(wire)]


def test_a_connection_that_is_to_be_closed_is_not_kept(store: Store) -> None:
    """As the store says in its answer."""
    closed = _HELLO.replace(b"ETag: x", b"Connection: Close")
    with store([closed], [_HELLO]) as wire:
        assert [b"hello"] * 2 == [_get(wire).content, _get(wire).content]


@pytest.mark.parametrize("padding", [4000, 4070, 5000, 20_000])
def test_long_headers_are_read(store: Store, padding: int) -> None:
    """Headers of several reads, which end anywhere."""
    with store([_HELLO.replace(b"ETag: x", b"ETag: " + b"x" * padding)]) as wire:
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
        # What Python takes for digits, and for no number.
        _HELLO.replace(b"Length: 5", b"Length: \xb2"),
        _HELLO.replace(b"Length: 5", b"Length: " + b"5" * 5000),
        _HELLO.replace(b"1.1 206", b"1.1 \xb20\xb2"),
        _HELLO.replace(b"1.1 206", b"1.0 206"),
        _HELLO.replace(b"206 Partial", b"100 Continue"),
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"x" * 100_000 + b"\r\n\r\n",
    ],
)
def test_other_answers_are_left_to_others(store: Store, answer: bytes) -> None:
    """An answer that is not known is no bytes, and nothing is asked for here for a while."""
    with store([answer]) as wire:
        with pytest.raises(OtherAnswerError):
            _get(wire)

        assert not wire.is_usable


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_fault_that_passes_is_forgotten(host: str) -> None:
    """A minute after an answer of an old proxy, the next request is made here again."""
    odd = _HELLO.replace(b"1.1 206", b"1.0 206")
    times = [1000.0]
    with _store([odd], [_HELLO], host=host, clock=lambda: times[0]) as wire:
        with pytest.raises(OtherAnswerError):
            _get(wire)
        understood = []
        for passed_s in (0.0, 59.0, 1.0):
            times[0] += passed_s
            understood.append(wire.is_usable)

        assert [False, False, True] == understood
        assert _REPLY == _get(wire)


_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n4\r\nbusy\r\n0\r\n\r\n"


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("rest", [_CHUNKED, b"Connection: close\r\n\r\nbusy"])
def test_trouble_of_unknown_length_changes_nothing(store: Store, status: int, rest: bytes) -> None:
    """S3 throttles in chunks: the status is told, and later requests are made here as before."""
    with store([b"HTTP/1.1 %d Slow Down\r\n" % status + rest], [_HELLO]) as wire:
        assert (status, b"") == ((refused := _get(wire)).status, refused.content)
        assert wire.is_usable
        assert _REPLY == _get(wire)


@pytest.mark.parametrize("rest", [_CHUNKED, b"Content-Length: 99999\r\n\r\n"])
def test_a_refusal_of_another_kind_is_left_to_others_alone(store: Store, rest: bytes) -> None:
    """S3 refuses in chunks: others are to read the reason, and later requests are made here."""
    with store([b"HTTP/1.1 404 Not Found\r\n" + rest], [_HELLO]) as wire:
        with pytest.raises(OtherAnswerError):
            _get(wire)

        assert wire.is_usable
        assert _REPLY == _get(wire)


@pytest.mark.parametrize("missing", [1, 5, 7, 26, len(_HELLO) - 1])
def test_an_answer_that_breaks_off_is_no_answer(store: Store, missing: int) -> None:
    """In its body or its head it is an error that is tried again in the same way."""
    with store([_HELLO[:-missing]], [_HELLO]) as wire:
        with pytest.raises(ConnectionClosedError):
            _get(wire)

        assert wire.is_usable
        assert _REPLY == _get(wire)


def test_a_store_that_hangs_up_is_told(store: Store) -> None:
    """Twice nothing: the second time on a fresh connection, so it is no stale one."""
    with store([_HELLO], [b""]) as wire:
        _get(wire)
        with pytest.raises(ConnectionClosedError):
            _get(wire)


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_retry_uses_no_connection_that_was_idle_as_long(host: str) -> None:
    """Two idle connections are forgotten on the way; after one time-out a fresh one is used."""
    accepted: list[socket.socket] = []
    both = threading.Barrier(2)

    def serve(listener: socket.socket, answers: int) -> None:
        connection, _ = listener.accept()
        secured = _secured(connection, host)
        accepted.append(secured)
        secured.recv(65536)
        if answers == 2:
            both.wait(30)  # so that neither request can use the other's connection
        secured.sendall(_HELLO)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        with (
            closing(_wire(listener.getsockname(), host, timeout_s=1)) as wire,
            ThreadPoolExecutor(4, thread_name_prefix="store") as pool,
        ):
            serving = [pool.submit(serve, listener, 2) for _ in range(2)]
            asking = [pool.submit(_get, wire) for _ in range(2)]
            assert [_REPLY] * 2 == [asked.result(30) for asked in asking]
            for served in serving:
                served.result(30)

            with pytest.raises(ReadTimeoutError):
                _get(wire)
            fresh = pool.submit(serve, listener, 1)
            assert _REPLY == _get(wire)
            fresh.result(30)
    for connection in accepted:
        connection.close()


def test_errors_come_with_their_text(store: Store) -> None:
    """A refusal is an answer too, and the connection stays."""
    busy = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 4\r\n\r\nbusy"
    with store([busy, _HELLO]) as wire:
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
        wire.get("/x", {"range": "bytes=0-1\r\nx: y"}, max_bytes=2)


@pytest.mark.parametrize("length", [1, 4096, 4097, 16_384, 16_385, 300_000, (1 << 20) + 7])
def test_long_answers_come_whole_and_at_once(store: Store, length: int) -> None:
    """Of any length, twice over one connection, and nobody waits for more than was sent."""
    content = (bytes(range(251)) * (length // 251 + 1))[:length]
    answer = b"HTTP/1.1 206 OK\r\nContent-Length: %d\r\n\r\n" % length + content
    with store([answer, answer]) as wire:
        began = time.monotonic()
        found = [wire.get("/x", {"host": "store"}, max_bytes=length).content for _ in range(2)]

        assert [content, content] == found
        assert time.monotonic() - began < 8  # its connections time out after 10


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
@pytest.mark.parametrize("sent", [b"", _HELLO[:20], _HELLO[:-2]])
def test_a_silent_store_is_given_up(host: str, sent: bytes) -> None:
    """Before its answer, in the middle of its head, and of its body."""
    with (
        _store([sent], host=host, timeout_s=0.5, is_silent=True) as wire,
        pytest.raises(ReadTimeoutError),
    ):
        _get(wire)


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
@pytest.mark.parametrize("at_once", [0, 61])
def test_a_store_that_trickles_is_given_up(host: str, at_once: int) -> None:
    """Each byte comes in time; headers would take 12 s, of 4.5, and a body 8, of half a second."""
    answer = b"HTTP/1.1 206 Partial Content\r\nETag: x\r\nContent-Length: 40\r\n\r\n" + b"x" * 40
    with (
        _store([answer], host=host, timeout_s=0.5, pause_s=0.2, at_once=at_once) as wire,
        pytest.raises(ReadTimeoutError),
    ):
        wire.get("/flowers/x", {"host": "store", "range": "bytes=0-39"}, max_bytes=40)


def test_a_store_that_does_not_shake_hands_is_given_up() -> None:
    """It takes the connection, and never says anything."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        closing(_wire(listener.getsockname(), "127.0.0.1", timeout_s=0.5)) as wire,
        pytest.raises(ConnectTimeoutError),
    ):
        _get(wire)


def test_a_store_of_another_name_is_not_asked() -> None:
    """Its certificate is not for this host: nothing is sent, and boto3 is to say why."""
    with _store([], host="roses.example") as wire:
        with pytest.raises(OtherAnswerError, match="certificate"):
            _get(wire)

        assert not wire.is_usable


def test_a_store_that_nobody_certified_is_not_asked() -> None:
    """Its certificate is of an authority that is not trusted."""
    with trustme.CA().cert_pem.tempfile() as others:
        context = tls_context(others)
    with _store([], host="127.0.0.1") as wire:
        wire._context = context
        with pytest.raises(OtherAnswerError, match="certificate"):
            _get(wire)


def test_what_was_altered_on_its_way_is_no_answer() -> None:
    """A record that does not decrypt is an answer that breaks off."""
    altered = b"\x17\x03\x03\x00\x40" + b"x" * 64
    with _store([_HELLO, altered], host="127.0.0.1", in_clear=altered) as wire:
        assert _REPLY == _get(wire)
        with pytest.raises(ConnectionClosedError):
            _get(wire)
