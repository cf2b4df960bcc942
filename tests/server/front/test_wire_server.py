"""Tests of the thread that takes all calls: whose turn it is, how many may wait, and the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from headrace.server.front.lines import Lines
from headrace.server.front.pace import Pace
from headrace.server.front.status import Failure
from headrace.server.front.wire import WireCall
from headrace.server.front.wire_server import WireServer
from support.served import TIMEOUT_S
from support.waiting import until

_METHODS = ("/test/First", "/test/Second")
_NEVER_S = 3600.0
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

    def may_wait(self, waiting: int) -> bool:
        return waiting >= 0 and "never-waits" not in self._metadata

    def no_room(self) -> bool:
        self._is_refused = self._metadata.get("cut") is None
        return self._is_refused

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
    *, most: int = 1000, pace: Pace | None = None
) -> Iterator[tuple[grpc.Channel, list[str], threading.Event]]:
    seen, gate = list[str](), threading.Event()

    def made(name: str) -> Callable[[WireCall], _Arrival]:
        return lambda wire: _Arrival(name, seen, gate, wire)

    server = WireServer({name: made(name) for name in (*_METHODS, "")}, (), most=most, pace=pace)
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


def test_lines_give_turns_to_callers() -> None:
    """One of each caller in turn, those of one in the order of coming, and all of them."""
    lines = Lines[int]()
    for number, caller in enumerate("aaabcca"):
        lines.append(caller, number)

    assert (7, 4, 2) == (len(lines), lines.count_of("a"), lines.count_of("c"))
    assert [0, 3, 4, 1, 5, 2, 6] == [lines.pop()[1] for _ in range(7)]
    assert (0, 0) == (len(lines), lines.count_of("a"))


def test_each_method_answers_and_others_go_to_the_unnamed() -> None:
    """A call of a method that is known, and one of a method that is not."""
    with _served() as (channel, _, _gate):
        for method, name in ((_METHODS[0], _METHODS[0]), ("/test/None", "")):
            answer = _asked(channel, method, line="a").result(timeout=TIMEOUT_S)
            assert f"of {name}".encode() == answer


def test_a_call_that_may_not_wait_is_cut() -> None:
    """Those before it and after it are answered."""
    with _served() as (channel, _, _gate):
        before = _asked(channel, _METHODS[0], line="a")
        cut = _asked(channel, _METHODS[0], line="a", **{"never-waits": "yes"})
        after = _asked(channel, _METHODS[0], line="a")

        assert before.result(timeout=TIMEOUT_S) == after.result(timeout=TIMEOUT_S)
        assert grpc.StatusCode.CANCELLED is cut.code()


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


def test_many_calls_of_a_caller_wait_while_another_is_there() -> None:
    """The other's call is answered meanwhile; when it has gone, all of the many are."""
    with _served(pace=Pace(turn_s=_NEVER_S)) as (channel, _, gate):
        first = _asked(channel, _METHODS[0], line="a", wait="yes")
        many = [_asked(channel, _METHODS[0], line="a") for _ in range(100)]
        one = _asked(channel, _METHODS[1], line="b")
        gate.set()
        one.result(timeout=TIMEOUT_S)
        first.result(timeout=TIMEOUT_S)
        assert not all(call.done() for call in many)

        for call in many:
            assert b"of /test/First" == call.result(timeout=TIMEOUT_S)


def test_nobody_waits_for_a_pace_when_a_server_ends() -> None:
    """The calls that wait in the lines are ended with the others."""
    with _served(pace=Pace(turn_s=_NEVER_S)) as (channel, _, gate):
        first = _asked(channel, _METHODS[0], line="a", wait="yes")
        many = [_asked(channel, _METHODS[0], line="a") for _ in range(100)]
        gate.set()
        _asked(channel, _METHODS[1], line="b").result(timeout=TIMEOUT_S)

    assert until(lambda: first.done() and all(call.done() for call in many))


@pytest.mark.parametrize("is_cut", [False, True])
def test_one_caller_has_half_of_the_room(*, is_cut: bool) -> None:
    """What it brings beyond that is told so or cut, and another still gets in."""
    more = {"cut": "yes"} if is_cut else {}
    with _served(most=8) as (channel, _, gate):
        calls = [_asked(channel, _METHODS[0], line="a", wait="yes", **more) for _ in range(40)]
        another = _asked(channel, _METHODS[1], line="b")
        gate.set()
        assert b"of /test/Second" == another.result(timeout=TIMEOUT_S)
        assert until(lambda: all(call.done() for call in calls))

    wanted = grpc.StatusCode.CANCELLED if is_cut else grpc.StatusCode.RESOURCE_EXHAUSTED
    codes = {call.code() for call in calls}
    assert {grpc.StatusCode.OK, wanted} == codes


def test_a_server_that_never_started_ends_at_once() -> None:
    """And one that listens on an address in use says so by the port."""
    server = WireServer({}, (("grpc.so_reuseport", 0),))
    port = server.add_insecure_port("127.0.0.1:0")
    other = WireServer({}, (("grpc.so_reuseport", 0),))

    assert port
    assert 0 == other.add_insecure_port(f"127.0.0.1:{port}")
    assert server.stop(0).is_set()
    assert other.stop(0).is_set()
