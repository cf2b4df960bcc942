"""Forecast what the open streams of a server will take.

A rank takes batches at the pace of its training, so what a stream will take is its pace times the
time. A stream that waits for its server takes less than it wants to: its pace is what it had while
the server kept up, or what it takes while it is not waiting. Processor time is what the process
spent lately for a byte that it sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

SAMPLE_S: Final = 5.0
"""Seconds between two looks."""
_WITHIN_S: Final = (60, 300)
_HALF_LIFE_S: Final = 10.0
_BEHIND: Final = 0.05
"""The share of the time up to which a server keeps up with a stream."""
_LEAST_FREE: Final = 0.1
"""A stream that always waits for its server may want ten times what it gets (arbitrary)."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a stream has taken so far.

    Attributes:
        payload_bytes: Bytes.
        behind_s: Seconds in which the server had nothing to send.
    """

    payload_bytes: int
    behind_s: float


class _Mean:
    """A rate, in which older times count less."""

    def __init__(self) -> None:
        self.amount = self.per = 0.0

    def add(self, amount: float, per: float, *, seconds: float) -> None:
        left = 0.5 ** (seconds / _HALF_LIFE_S)
        self.amount = self.amount * left + amount
        self.per = self.per * left + per

    @property
    def rate(self) -> float:
        return self.amount / self.per if self.per else 0.0


@dataclass(slots=True)
class _Stream:
    """The pace of a stream.

    Attributes:
        taken: What it had taken at the last look.
        pace: Bytes a second while the server kept up.
        slowed: Bytes a second of the time in which the server had something to send.
        looks: How often it was looked at; at first it fills the buffers on its way.
    """

    taken: Taken
    pace: _Mean
    slowed: _Mean
    looks: int = 0

    def look(self, taken: Taken, seconds: float) -> None:
        grown = taken.payload_bytes - self.taken.payload_bytes
        behind_s = min(seconds, max(0.0, taken.behind_s - self.taken.behind_s))
        self.taken = taken
        self.looks += 1
        if self.looks == 1:
            return
        if behind_s <= _BEHIND * seconds:
            self.pace.add(grown, seconds, seconds=seconds)
        free_s = max(seconds - behind_s, _LEAST_FREE * seconds)
        self.slowed.add(grown, free_s, seconds=seconds)

    def wanted(self, seconds: float) -> float:
        """Return the bytes that it will take."""
        return (self.pace.rate or self.slowed.rate) * seconds


class Demand(Collector):
    """The forecast of one server; `look` is called by one thread, the rest by any.

    Args:
        registry: Where its metrics are registered.
        streams: Returns what each open stream has taken, by its number.
        sent_bytes: Returns the payload bytes of all streams so far.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        streams: Callable[[], dict[int, Taken]],
        sent_bytes: Callable[[], int],
    ) -> None:
        self.processors = 0.0
        self._streams, self._sent_bytes = streams, sent_bytes
        self._known: dict[int, _Stream] = {}
        self._cost = _Mean()
        self._before: tuple[float, float, int] | None = None
        registry.register(self)

    def look(self) -> None:
        """Note what streams have taken since the last look."""
        now, spent_s, sent = time.monotonic(), time.process_time(), self._sent_bytes()
        before, self._before = self._before, (now, spent_s, sent)
        if before is None:
            return
        seconds = now - before[0]
        self._cost.add(spent_s - before[1], max(0, sent - before[2]), seconds=seconds)
        known = {}
        for number, taken in self._streams().items():
            stream = self._known.get(number)
            if stream is None:
                stream = _Stream(taken, _Mean(), _Mean())
            else:
                stream.look(taken, seconds)
            known[number] = stream
        self._known = known

    def forecast(self, seconds: float) -> tuple[float, float]:
        """Return the bytes and the processor seconds that open streams will take in a time."""
        wanted = sum(stream.wanted(seconds) for stream in [*self._known.values()])
        return wanted, wanted * self._cost.rate

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values."""
        return self._metrics([])

    def collect(self) -> Iterable[Metric]:
        """Return the forecasts."""
        return self._metrics([(each, *self.forecast(each)) for each in _WITHIN_S])

    def _metrics(self, rows: Sequence[tuple[int, float, float]]) -> list[Metric]:
        texts = {
            "bytes": "Payload bytes that open streams will take within this time, by their "
            "paces. More than the network of this server can carry: add replicas.",
            "processor_seconds": "Processor seconds that this will take. More than "
            "headrace_demand_processor_seconds_available: add replicas, before trainers wait.",
            "processor_seconds_available": "Processor seconds that this server has in that time. "
            "Less than headrace_demand_processor_seconds: trainers will wait.",
        }
        families = [
            GaugeMetricFamily(f"headrace_demand_{name}", text, labels=["within_s"])
            for name, text in texts.items()
        ]
        for within_s, size, spent_s in rows:
            values = (size, spent_s, self.processors * within_s)
            for family, value in zip(families, values, strict=True):
                family.add_metric([str(within_s)], value)
        return list(families)
