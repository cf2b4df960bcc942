"""What streams will take is forecast from their paces, also while they wait."""

from __future__ import annotations

import time

import pytest
from prometheus_client import CollectorRegistry

from headrace.server.telemetry.demand import Demand, Taken


class _Streams:
    """Streams of 1,000 bytes a second, and a clock; a server that spends 1 s a 10,000 bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.taken = {0: Taken(0, 0.0)}
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "process_time", lambda: self.sent() / 10_000)
        self.registry = CollectorRegistry()
        self.demand = Demand(self.registry, lambda: self.taken, self.sent)
        self.demand.look()

    def sent(self) -> int:
        return sum(each.payload_bytes for each in self.taken.values())

    def run(self, size: int, behind_s: float) -> None:
        """Let five seconds pass."""
        self.now += 5.0
        self.taken = {
            number: Taken(each.payload_bytes + size, each.behind_s + behind_s)
            for number, each in self.taken.items()
        }
        self.demand.look()


def test_a_pace_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not the burst with which a stream fills the buffers on its way."""
    streams = _Streams(monkeypatch)
    streams.run(0, 0.0)
    streams.run(90_000, 0.0)
    for _ in range(4):
        streams.run(5000, 0.1)

    size, _ = streams.demand.forecast(60)
    assert 60_000 == pytest.approx(size)


def test_processor_time_is_that_of_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told with what there is."""
    streams = _Streams(monkeypatch)
    streams.demand.processors = 2.0
    for _ in range(4):
        streams.run(5000, 0.0)
    value = streams.registry.get_sample_value

    assert 300_000 == pytest.approx(value("headrace_demand_bytes", {"within_s": "300"}))
    spent = value("headrace_demand_processor_seconds", {"within_s": "60"})
    assert 6.0 == pytest.approx(spent)
    name = "headrace_demand_processor_seconds_available"
    assert 120.0 == value(name, {"within_s": "60"})


def test_a_stream_that_waits_wants_what_it_took_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that falls behind must not seem to be enough."""
    streams = _Streams(monkeypatch)
    for _ in range(4):
        streams.run(5000, 0.0)
    for _ in range(4):
        streams.run(2000, 4.0)
    assert 60_000 == pytest.approx(streams.demand.forecast(60)[0])


def test_a_stream_that_always_waited_wants_more_than_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As much as in the time in which there was something to send."""
    streams = _Streams(monkeypatch)
    for _ in range(4):
        streams.run(2500, 2.5)
    assert 60_000 == pytest.approx(streams.demand.forecast(60)[0])


def test_a_stream_that_has_ended_wants_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no processor time either."""
    streams = _Streams(monkeypatch)
    for _ in range(3):
        streams.run(5000, 0.0)
    streams.taken = {}
    streams.now += 5.0
    streams.demand.look()
    assert (0.0, 0.0) == streams.demand.forecast(60)
