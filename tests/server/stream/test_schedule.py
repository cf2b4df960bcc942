"""Claims about whose turn it is: what a server keeps of its callers is bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.server.access.callers import Caller
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.open_streams import OpenStreams
from headrace.server.stream.schedule import _MOST_CALLERS, Schedule, _ByCaller
from headrace.server.stream.stream_calls import _begun


def test_a_caller_keeps_what_is_its_own() -> None:
    """Calls of one caller share one object, and those of others have another."""
    kept = _ByCaller(object)

    assert kept.of("a") is kept.of("a")
    assert kept.of("a") is not kept.of("b")


def test_callers_that_come_for_the_first_time_take_no_memory_forever() -> None:
    """An attacker with a network of addresses is as many callers; the oldest are forgotten."""
    kept = _ByCaller(object)
    first = kept.of("first")
    for number in range(2 * _MOST_CALLERS):
        kept.of(str(number))

    assert kept._kept.cache_info().currsize == _MOST_CALLERS
    assert first is not kept.of("first")


def test_a_caller_rests_beside_others_if_it_sets_much_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Little work takes no rest, and nobody rests alone."""
    used_s, streams, cache = [0.0], OpenStreams(8), Any
    monkeypatch.setattr(time, "thread_time", lambda: used_s[0])
    schedule = Schedule(ServerConfig(datasets={"a": "/a"}), cache=cache, streams=streams)  # type: ignore[arg-type] # of no use here

    def waited_s(caller: str, seconds: float) -> float:
        """Set a stream up in so much processor time; return how long it waited for its turn."""
        asked = time.monotonic()
        with schedule.setup_turn(caller):
            waited = time.monotonic() - asked
            used_s[0] += seconds
        return waited

    with streams.admit(Caller("alone")):
        assert waited_s("alone", 10.0) + waited_s("alone", 10.0) < 1.0
    with streams.admit(Caller("other")):
        assert waited_s("rare", 0.003) + waited_s("rare", 0.003) + waited_s("rare", 0.0) < 0.2
        waited_s("busy", 0.2)
        assert 0.3 < waited_s("busy", 0.0) < 10.0


def test_a_start_is_over_when_the_first_batch_is_made() -> None:
    """Before it is sent: a client that reads nothing must not keep out its caller's others."""
    seen: list[object] = []

    def messages() -> Iterator[bytes]:
        yield b"start"
        seen.append("made")
        yield b"first"
        yield b"second"

    with ExitStack() as start_turn:
        start_turn.callback(seen.append, "over")
        seen.extend(_begun(messages(), start_turn))

    assert ["made", "over", b"start", b"first"] == seen


def test_a_caller_that_opens_many_streams_rests_beside_others() -> None:
    """What a stream costs in other threads counts too; nobody rests alone, or for a few."""
    streams = OpenStreams(8)
    schedule = Schedule(ServerConfig(datasets={"a": "/a"}), cache=Any, streams=streams)  # type: ignore[arg-type] # of no use here

    def opened_s(caller: str, count: int) -> float:
        """Open streams one after the other; return how long that took."""
        began = time.monotonic()
        for _ in range(count):
            with schedule.setup_turn(caller):
                schedule.charge_stream(caller)
        return time.monotonic() - began

    with streams.admit(Caller("alone")):
        assert opened_s("alone", 20) < 0.1
    with streams.admit(Caller("other")):
        assert opened_s("few", 3) < 0.1
        assert 0.15 < opened_s("many", 20) < 10.0


def test_what_a_caller_did_alone_keeps_it_waiting_for_nobody() -> None:
    """Many streams without a rest, or one long setup, and then somebody else comes."""
    streams = OpenStreams(8)
    schedule = Schedule(ServerConfig(datasets={"a": "/a"}), cache=Any, streams=streams)  # type: ignore[arg-type] # of no use here
    with streams.admit(Caller("alone")):
        for _ in range(2000):
            with schedule.setup_turn("alone"):
                schedule.charge_stream("alone")

        began = time.monotonic()
        with streams.admit(Caller("other")), schedule.setup_turn("alone"):
            assert time.monotonic() - began < 1.0
