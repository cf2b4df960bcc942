"""Tests of the thread that takes all calls: whose turn it is, how many may wait, and the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from headrace.server.front.status import Failure
from headrace.server.front.wire import WireCall
from headrace.server.front.wire_server import WireServer
from support.served import TIMEOUT_S
from support.waiting import until

_METHODS = ("/test/First", "/test/Second")
_FULL = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room", b"")


class _Arrival:
    """Answers with its method's name; its line is what the metadata say."""

    def __init__(self, name: str, seen: list[str], gate: threading.Event, wire: WireCall) -> None:
        self._name, self._seen, self._gate, self._wire = name, seen, gate, wire
        self._is_refused = False
        self._metadata = dict(wire.metadata)

    @property
    def line(self) -> str:
        return str(self._metadata.get("line", ""))

    @property
    def is_known(self) -> bool:
        return "stranger" not in self._metadata

    def no_room(self) -> None:
        self._is_refused = True

    def arrived(self) -> None:
        if self._is_refused:
            self._wire.fail(_FULL)
            return
        if "wait" in self._metadata:
            self._gate.wait(TIMEOUT_S)
        self._seen.append(str(self._metadata.get("name", "")))
        self._wire.receive()

    def received(self, request: bytes) -> None:
        self._wire.answer(request + self._name.encode())

    def requests_ended(self) -> None:
        self._wire.answer(None)


@contextmanager
def _served(
    *, most: int = 1000, kept: list[WireCall] | None = None, options: Sequence[tuple[str, int]] = ()
) -> Iterator[tuple[grpc.Channel, list[str], threading.Event]]:
    seen, gate = list[str](), threading.Event()

    def made(name: str) -> Callable[[WireCall], _Arrival]:
        def arrival(wire: WireCall) -> _Arrival:
            if kept is not None:
                kept.append(wire)
            return _Arrival(name, seen, gate, wire)

        return arrival

    server = WireServer({name: made(name) for name in (*_METHODS, "")}, options, most=most)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=TIMEOUT_S)
            yield channel, seen, gate
    finally:
        gate.set()
        assert server.stop(0).wait(TIMEOUT_S)


def _asked(channel: grpc.Channel, method: str, **metadata: str) -> Any:
    ask: Any = channel.unary_unary(method, None, None)
    return ask.future(b"of ", metadata=tuple(metadata.items()), timeout=TIMEOUT_S)


def test_each_method_answers_and_others_go_to_the_unnamed() -> None:
    """A call of a method that is known, and one of a method that is not."""
    with _served() as (channel, _, _gate):
        for method, name in ((_METHODS[0], _METHODS[0]), ("/test/None", "")):
            answer = _asked(channel, method, line="a").result(timeout=TIMEOUT_S)
            assert f"of {name}".encode() == answer


def test_calls_that_are_over_leave_room_for_others_of_their_connection() -> None:
    """Whoever still refers to them: a proxy has one connection for all of its clients."""
    kept = list[WireCall]()
    with _served(kept=kept, options=[("grpc.max_concurrent_streams", 4)]) as (channel, _, _gate):
        for _ in range(20):
            assert _asked(channel, _METHODS[0], line="a").result(timeout=TIMEOUT_S)

    assert 20 == len(kept)
    kept[0].cancel()


def test_callers_have_their_turns() -> None:
    """Behind a hundred calls of one caller that came first, another's is not the last."""
    with _served() as (channel, seen, gate):
        first = _asked(channel, _METHODS[0], line="a", name="first", wait="yes")
        many = [_asked(channel, _METHODS[0], line="a", name="many") for _ in range(100)]
        one = _asked(channel, _METHODS[1], line="b", name="one")
        gate.set()
        for call in (first, one, *many):
            call.result(timeout=TIMEOUT_S)

    assert seen.index("one") < 90


def test_strangers_come_last() -> None:
    """However many came before, known callers have their turns first, and then they do."""
    with _served() as (channel, seen, gate):
        first = _asked(channel, _METHODS[0], line="a", name="first", wait="yes")
        many = [_asked(channel, _METHODS[0], line="n", name="many", stranger="") for _ in range(20)]
        known = [_asked(channel, _METHODS[1], line="a", name="known") for _ in range(20)]
        # Nobody has a turn for twice as long as the first one took: meanwhile all of them come.
        time.sleep(0.5)
        gate.set()
        for call in (first, *known, *many):
            call.result(timeout=TIMEOUT_S)

    assert ["first", *["known"] * 20, *["many"] * 20] == seen


def test_strangers_that_wait_end_with_the_server() -> None:
    """None of them delays the end."""
    with _served() as (channel, _, gate):
        first = _asked(channel, _METHODS[0], line="a", wait="yes")
        many = [_asked(channel, _METHODS[0], line="n", stranger="") for _ in range(100)]
        gate.set()
        first.result(timeout=TIMEOUT_S)

    assert until(lambda: all(call.done() for call in many))


def test_one_caller_has_half_of_the_room() -> None:
    """What it brings beyond that is told so, and another still gets in."""
    with _served(most=8) as (channel, _, gate):
        calls = [_asked(channel, _METHODS[0], line="a", wait="yes") for _ in range(40)]
        another = _asked(channel, _METHODS[1], line="b")
        gate.set()
        assert b"of /test/Second" == another.result(timeout=TIMEOUT_S)
        assert until(lambda: all(call.done() for call in calls))

    codes = {call.code() for call in calls}
    assert {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED} == codes


@pytest.mark.parametrize("error", [ValueError("no time"), SystemExit("no time")])
def test_nothing_ends_the_thread_of_all_calls(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even what is raised between events: it is logged as a bug, and calls are answered."""
    errors = [error]
    wait_s = WireServer._wait_s

    def failing(server: WireServer) -> float:
        if errors:
            raise errors.pop()
        return wait_s(server)

    monkeypatch.setattr(WireServer, "_wait_s", failing)
    with _served() as (channel, _, _gate):
        assert _asked(channel, _METHODS[0], line="a").result(timeout=TIMEOUT_S)

    assert [] == errors
    assert ["this is a bug of headrace" in each.message for each in caplog.records] == [True]


def test_a_server_that_never_started_ends_at_once() -> None:
    """And one that listens on an address in use says so by the port."""
    server = WireServer({}, (("grpc.so_reuseport", 0),))
    port = server.add_insecure_port("127.0.0.1:0")
    other = WireServer({}, (("grpc.so_reuseport", 0),))

    assert port
    assert 0 == other.add_insecure_port(f"127.0.0.1:{port}")
    assert server.stop(0).is_set()
    assert other.stop(0).is_set()
