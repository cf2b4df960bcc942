"""Count what streams send and how long they wait, in plain numbers that are added up on request.

A Prometheus counter takes a lock and some calls, and each batch changes a dozen counters. Here each
number belongs to one stream and is written by one of its threads, so counting is a plain addition.
"""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace.server.telemetry.shortages import Shortage

_BATCH_SECONDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_WAIT_SECONDS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)

_SENT = {
    "batches": "Batches sent. Flat while streams are open: trainers or the store are stuck.",
    "samples": "Samples sent, including pads. Flat as batches.",
    "payload_bytes": "Payload bytes sent. Near the link's speed: the network is the limit.",
}
_WAITED = {
    "store_wait": (
        "Seconds that an open stream waited for its store, by rank; gone when it ends. A rate near "
        "1: this rank starves, see headrace_store_fetch_seconds and the cache."
    ),
    "client_wait": (
        "Seconds that an open stream waited for its client to read, by rank; gone when it ends. A "
        "rate near 1 is good: the server is faster than the trainer. Near 0 while the trainer "
        "waits: the server or its store is the limit."
    ),
}


@dataclass(frozen=True, slots=True)
class StreamAbout:
    """The properties of a stream when it was opened.

    Attributes:
        caller: The name of the caller.
        peer: The caller's address.
        asked: The request in words.
        epoch_samples: The number of samples in an epoch.
        start: Epoch and position of the first batch.
        shortage: Returns the shortage of cache in which its job is now; None for none.
    """

    caller: str = ""
    peer: str = ""
    asked: str = ""
    epoch_samples: int = 0
    start: tuple[int, int] = (0, 0)
    shortage: Callable[[], Shortage | None] = lambda: None


_NOBODY = StreamAbout()


@dataclass(slots=True, eq=False)
class Counts:
    """The counts of one stream; each number is written by only one thread.

    Attributes:
        dataset: The name of what is read.
        rank: The rank of the stream; None for a call that returns one batch.
        batches: Batches sent.
        samples: Samples sent.
        payload_bytes: Payload bytes sent.
        made_s: Seconds spent making batches.
        made: The number of batches by the time to make them, up to each of the bounds, then beyond.
        store_wait_s: Seconds spent waiting for the store.
        client_wait_s: Seconds spent waiting for the client to read messages.
        in_flight_bytes: The size of the message being sent.
        place: Epoch, position and step after the last batch that was sent; None before the first.
        starving_since: When it started to wait for the store, if it waits, on the monotonic clock.
        sending_since: When the message that the client has not read yet was sent.
        about: The properties of the stream, for views of open streams.
        number: The number of the stream, unique in this process.
    """

    dataset: str
    rank: str | None
    batches: int = 0
    samples: int = 0
    payload_bytes: int = 0
    made_s: float = 0.0
    made: list[int] = field(default_factory=lambda: [0] * (len(_BATCH_SECONDS) + 1))
    store_wait_s: float = 0.0
    client_wait_s: float = 0.0
    in_flight_bytes: int = 0
    place: tuple[int, int, int] | None = None
    starving_since: float | None = None
    sending_since: float | None = None
    about: StreamAbout = _NOBODY
    number: int = field(default_factory=itertools.count().__next__)

    def add(self, other: Counts) -> None:
        """Add the counts of another stream, which has ended."""
        self.batches += other.batches
        self.samples += other.samples
        self.payload_bytes += other.payload_bytes
        self.made_s += other.made_s
        self.made = [one + more for one, more in zip(self.made, other.made, strict=True)]


class StreamCounts(Collector):
    """The metrics of all streams, which add up their counts. Safe for several threads.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = threading.Lock()
        self._open: set[Counts] = set()
        self._ended: dict[str, Counts] = {}
        registry.register(self)
        self._open_streams = Gauge(
            "headrace_open_streams",
            "Streams open now. At max_streams new ones are refused: add replicas.",
            registry=registry,
        )
        self._ended_streams = Counter(
            "headrace_ended_streams_total",
            "Streams that ended, by reason (OK, CANCELLED or the reason of the error). A rise of "
            "SHARD_CORRUPT, STORE_UNAVAILABLE or INTERNAL needs a person.",
            ["dataset", "reason"],
            registry=registry,
        )
        self._damaged = Counter(
            "headrace_damaged_samples_total",
            "Samples whose image cannot be decoded and which were replaced by others "
            "(on_error=skip). Above 0: the log names them; list them in skips, or repair the "
            "files.",
            ["dataset"],
            registry=registry,
        )
        self._starved = Histogram(
            "headrace_store_wait_seconds",
            "Time that a batch waited for blocks that were not cached. Much above a millisecond: "
            "the store is too slow, or the cache or prefetch_bytes too small.",
            ["dataset"],
            buckets=_WAIT_SECONDS,
            registry=registry,
        )

    def open(self, counts: Counts) -> None:
        """Add a stream; `close` must follow."""
        self._open_streams.inc()
        # From now on the value is 0, not missing.
        self._starved.labels(counts.dataset)
        with self._lock:
            self._open.add(counts)
            self._ended.setdefault(counts.dataset, Counts(counts.dataset, None))

    def close(self, counts: Counts, reason: str) -> None:
        """Count the end of a stream, and keep its sums."""
        with self._lock:
            self._open.discard(counts)
            self._ended[counts.dataset].add(counts)
        self._open_streams.dec()
        self._ended_streams.labels(counts.dataset, reason).inc()

    def replaced(self, dataset: str, *, samples: int) -> None:
        """Count damaged samples that were replaced by others."""
        self._damaged.labels(dataset).inc(samples)

    def starved(self, dataset: str, *, seconds: float) -> None:
        """Note how long a batch waited for blocks."""
        self._starved.labels(dataset).observe(seconds)

    def rows(self) -> list[dict[str, Any]]:
        """Return the counts of each open stream as JSON values."""
        with self._lock:
            streams = [counts for counts in self._open if counts.rank is not None]
        return [_row(counts) for counts in streams]

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values."""
        return [*_by_dataset(()), *_by_rank(()), _in_flight(0)]

    def collect(self) -> Iterable[Metric]:
        """Return the sums."""
        with self._lock:
            sums = {dataset: Counts(dataset, None) for dataset in self._ended}
            for counts in (*self._ended.values(), *self._open):
                sums[counts.dataset].add(counts)
            return [
                *_by_dataset(sums.values()),
                *_by_rank([counts for counts in self._open if counts.rank is not None]),
                _in_flight(sum(counts.in_flight_bytes for counts in self._open)),
            ]


class StreamTally:
    """Counts for one stream, without a lock, since each thread counts different things.

    Args:
        streams: The metrics of all streams.
        dataset: What is sent from, in words.
        rank: The rank of the stream; None for a call that is over after one batch.
        about: The properties of the stream.

    Attributes:
        counts: The counts.
    """

    def __init__(
        self,
        streams: StreamCounts,
        dataset: str,
        rank: int | None,
        about: StreamAbout | None = None,
    ) -> None:
        self._streams = streams
        self._began = time.monotonic()
        self.counts = Counts(dataset, None if rank is None else str(rank))
        if about is not None:
            self.counts.about = about

    def begin(self) -> None:
        """Count the stream as open; `close` must follow."""
        self._streams.open(self.counts)

    @property
    def seconds(self) -> float:
        """Return how long the stream has been open."""
        return time.monotonic() - self._began

    def made(self, *, seconds: float, batches: int) -> None:
        """Note how long it took to make batches, in total."""
        self.counts.made[bisect_left(_BATCH_SECONDS, seconds / batches)] += batches
        self.counts.made_s += seconds

    def sent(
        self,
        *,
        batches: int,
        samples: int,
        payload_bytes: int,
        place: tuple[int, int, int],
    ) -> None:
        """Count batches."""
        counts = self.counts
        counts.batches += batches
        counts.samples += samples
        counts.payload_bytes += payload_bytes
        counts.place = place

    def replaced(self, *, samples: int) -> None:
        """Count damaged samples that were replaced by others."""
        self._streams.replaced(self.counts.dataset, samples=samples)

    def starving(self, since: float) -> None:
        """Note that a batch has been waiting for its store since a time on the monotonic clock."""
        self.counts.starving_since = since

    def starved(self, *, seconds: float) -> None:
        """Note how long a batch waited for its store."""
        self.counts.starving_since = None
        self.counts.store_wait_s += seconds
        self._streams.starved(self.counts.dataset, seconds=seconds)

    def timed(
        self, messages: Generator[bytes, None, None], *, taken: Callable[[int], None]
    ) -> Iterator[bytes]:
        """Yield messages, and count the time until each has been read.

        Args:
            messages: The messages of the stream.
            taken: Is called with the size of each message after it has been read.
        """
        counts = self.counts
        try:
            for message in messages:
                counts.in_flight_bytes = len(message)
                began = counts.sending_since = time.monotonic()
                try:
                    yield message
                finally:
                    counts.sending_since = None
                    counts.client_wait_s += time.monotonic() - began
                    counts.in_flight_bytes = 0
                taken(len(message))
        finally:
            messages.close()

    def close(self, reason: str) -> dict[str, object]:
        """Remove the stream from the metrics; return its summary for the log."""
        counts = self.counts
        self._streams.close(counts, reason)
        return {
            "batches": counts.batches,
            "samples": counts.samples,
            "payload_bytes": counts.payload_bytes,
            "seconds": round(self.seconds, 3),
            "store_wait_s": round(counts.store_wait_s, 3),
            "client_wait_s": round(counts.client_wait_s, 3),
        }


def _row(counts: Counts) -> dict[str, Any]:
    about = counts.about
    epoch, position, step = counts.place or (*about.start, 0)
    return {
        "number": counts.number,
        "caller": about.caller,
        "peer": about.peer,
        "asked": about.asked,
        "dataset": counts.dataset,
        "rank": int(counts.rank or 0),
        "epoch": epoch,
        "position": position,
        "epoch_samples": about.epoch_samples,
        "step": step,
        "batches": counts.batches,
        "samples": counts.samples,
        "payload_bytes": counts.payload_bytes,
        "made_s": counts.made_s,
        # Includes waits in progress, since a wait of minutes is what operators look for.
        "store_wait_s": counts.store_wait_s + _since(counts.starving_since),
        "client_wait_s": counts.client_wait_s + _since(counts.sending_since),
        "shortage": _shortage_row(about.shortage()),
    }


def _shortage_row(shortage: Shortage | None) -> dict[str, int] | None:
    if shortage is None:
        return None
    return {name: getattr(shortage, name) for name in ("job_bytes", "part_bytes", "needed_bytes")}


def _since(began: float | None) -> float:
    return 0.0 if began is None else time.monotonic() - began


def _by_dataset(sums: Iterable[Counts]) -> Iterator[Metric]:
    sent = {
        name: CounterMetricFamily(f"headrace_sent_{name}", text, labels=["dataset"])
        for name, text in _SENT.items()
    }
    made = HistogramMetricFamily(
        "headrace_batch_seconds",
        "Time to make one batch, including its wait for the store. Much above the trainers' step "
        "time: see headrace_store_wait_seconds.",
        labels=["dataset"],
    )
    for counts in sums:
        for name, family in sent.items():
            family.add_metric([counts.dataset], getattr(counts, name))
        made.add_metric([counts.dataset], _buckets(counts.made), sum_value=counts.made_s)
    yield from sent.values()
    yield made


def _buckets(made: Sequence[int]) -> list[tuple[str, float]]:
    bounds = [*map(str, _BATCH_SECONDS), "+Inf"]
    return [(bound, sum(made[: index + 1])) for index, bound in enumerate(bounds)]


def _by_rank(streams: Iterable[Counts]) -> Iterator[Metric]:
    waits = {
        name: CounterMetricFamily(
            f"headrace_stream_{name}_seconds", text, labels=["dataset", "rank"]
        )
        for name, text in _WAITED.items()
    }
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for counts in streams:
        own = sums.setdefault((counts.dataset, str(counts.rank)), dict.fromkeys(waits, 0.0))
        for name in waits:
            own[name] += getattr(counts, f"{name}_s")
    for labels, values in sums.items():
        for name, family in waits.items():
            family.add_metric(labels, values[name])
    yield from waits.values()


def _in_flight(size: int) -> Metric:
    return GaugeMetricFamily(
        "headrace_in_flight_bytes",
        "Bytes of messages handed to connections and not yet taken by them. Near max_streams times "
        "2 MiB: most clients read more slowly than the server sends.",
        value=size,
    )
