"""Count what streams send and how long they wait, in plain numbers that are added up on request.

A Prometheus counter takes a lock and some calls, and each batch changes a dozen counters. Here each
number belongs to one stream and is written by one of its threads, so counting is a plain addition.
"""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_left
from collections import deque
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

from headrace.server.telemetry.demand import SAMPLE_S, Demand, Taken
from headrace.server.telemetry.shortages import Shortage
from headrace.server.telemetry.stream_waits import ReadTimes, Stalls, Waits, shared_out

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
    "decode_wait": (
        "Seconds that an open stream had nothing to send while blocks were decoded or stages ran, "
        "by rank; gone when it ends. A rate near 1: more processors, or simpler stages."
    ),
    "server_wait": (
        "Seconds that an open stream had nothing to send for another reason: planning, copying, "
        "other streams; gone when it ends. A rate near 1: more processors, or another replica."
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

_ENDED_S = 15.0
"""A page asks every 5 s, and may miss one answer."""
_MAX_ENDED = 1024

_WORTH_SAYING_S = 0.05
"""Less is told later, with more: 20 accounts a second take 0.05 % of a processor."""


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
        decode_wait_s: Seconds spent waiting for blocks to be decoded, and for stages.
        behind_s: Seconds in which there was nothing to send.
        blocked_s: Seconds of these in which there was no room to write to.
        in_flight_bytes: The size of the message being sent.
        place: Epoch, position and step after the last batch that was sent; None before the first.
        starving_since: When it started to wait for the store, if it waits, on the monotonic clock.
        sending_since: When the message that the client has not read yet was sent.
        behind_since: Since when there is nothing to send.
        staging_since: When the stages of a batch began, and the waits for blocks before them.
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
    decode_wait_s: float = 0.0
    behind_s: float = 0.0
    blocked_s: float = 0.0
    in_flight_bytes: int = 0
    place: tuple[int, int, int] | None = None
    starving_since: float | None = None
    sending_since: float | None = None
    behind_since: float | None = None
    staging_since: tuple[float, float] | None = None
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

    Attributes:
        reads: What reads of the store spent their time on.
        stalls: The time in which the process got no processor; whoever serves starts it.
        demand: What open streams will take; it has forecasts while ``stalls`` runs.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = threading.Lock()
        self._open: set[Counts] = set()
        self._ended: dict[str, Counts] = {}
        self._last_rows: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_MAX_ENDED)
        self.demand = Demand(registry, self._taken, self._sent_bytes)
        self.reads, self.stalls = ReadTimes(), Stalls(self.demand.look, every_s=SAMPLE_S)
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
        row = _row(counts, self.waits_of(counts)) | {"ended": reason}
        with self._lock:
            if counts.rank is not None:
                self._last_rows.append((time.monotonic(), row))
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
        """Return the counts of each open stream as JSON values.

        Those of streams that ended a moment ago follow, with the reason as ``ended``: at most
        1,024, so that what was sent between two calls is known even of short streams.
        """
        since = time.monotonic() - _ENDED_S
        with self._lock:
            streams = [counts for counts in self._open if counts.rank is not None]
            while self._last_rows and self._last_rows[0][0] < since:
                self._last_rows.popleft()
            ended = [row for _, row in self._last_rows]
        return [*(_row(counts, self.waits_of(counts)) for counts in streams), *ended]

    def _taken(self) -> dict[int, Taken]:
        with self._lock:
            streams = [counts for counts in self._open if counts.rank is not None]
        return {counts.number: Taken(counts.payload_bytes, _behind_s(counts)) for counts in streams}

    def _sent_bytes(self) -> int:
        with self._lock:
            return sum(counts.payload_bytes for counts in (*self._ended.values(), *self._open))

    def waits_of(self, counts: Counts) -> Waits:
        """Return what a stream did while it had nothing to send, until now, by its own times."""
        starving_s = _since(counts.starving_since)
        decode_s = starving_s * self.reads.decode_share(counts.dataset) if starving_s else 0.0
        store_s = counts.store_wait_s + starving_s - decode_s
        decode_s += counts.decode_wait_s
        if (staging := counts.staging_since) is not None:
            began, known_s = staging
            decode_s += max(0.0, time.monotonic() - began - (store_s + decode_s - known_s))
        return Waits(store_s, decode_s, max(0.0, _behind_s(counts) - store_s - decode_s))

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values."""
        return [*_by_dataset(()), *_by_rank(()), _in_flight(0), _stalled(0)]

    def collect(self) -> Iterable[Metric]:
        """Return the sums."""
        with self._lock:
            sums = {dataset: Counts(dataset, None) for dataset in self._ended}
            for counts in (*self._ended.values(), *self._open):
                sums[counts.dataset].add(counts)
            return [
                *_by_dataset(sums.values()),
                *_by_rank(
                    [
                        (counts, self.waits_of(counts))
                        for counts in self._open
                        if counts.rank is not None
                    ]
                ),
                _in_flight(sum(counts.in_flight_bytes for counts in self._open)),
                _stalled(self.stalls.seconds),
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
        self._told, self._told_behind_s, self._told_stalled_s = Waits(), 0.0, streams.stalls.seconds

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
        counts = self.counts
        counts.starving_since = None
        decode_s = seconds * self._streams.reads.decode_share(counts.dataset)
        counts.store_wait_s += seconds - decode_s
        counts.decode_wait_s += decode_s
        self._streams.starved(self.counts.dataset, seconds=seconds)

    def staging(self) -> None:
        """Note that the stages of a batch begin; `staged` follows."""
        counts = self.counts
        counts.staging_since = time.monotonic(), counts.store_wait_s + counts.decode_wait_s

    def staged(self) -> None:
        """Note that they are done; what they waited for blocks is known already."""
        counts, waits = self.counts, self._streams.waits_of(self.counts)
        counts.staging_since = None
        counts.decode_wait_s = waits.decode_s

    def blocked(self, since: float | None) -> None:
        """Note that the stream waits for room to write to since a time, or no longer: for None."""
        counts = self.counts
        if since is None:
            waited_s = _since(counts.sending_since)
            counts.sending_since = None
            counts.client_wait_s += waited_s
            counts.blocked_s += waited_s
        else:
            counts.sending_since = since

    def owed(self) -> Waits | None:
        """Return what the client has not been told, as `waits` does; None if it is not worth it."""
        grown_s = _behind_s(self.counts) - self._told_behind_s
        stalled_s = self._streams.stalls.seconds - self._told_stalled_s
        return self.waits() if grown_s + stalled_s >= _WORTH_SAYING_S else None

    def waits(self) -> Waits:
        """Return what the stream did while it had nothing to send, since the last call."""
        found = self._streams.waits_of(self.counts)
        behind_s, stalled_s = _behind_s(self.counts), self._streams.stalls.seconds
        told, self._told = self._told, found
        shared = shared_out(
            Waits(max(0.0, found.store_s - told.store_s), max(0.0, found.decode_s - told.decode_s)),
            max(0.0, behind_s - self._told_behind_s),
            stalled_s - self._told_stalled_s,
        )
        self._told_behind_s, self._told_stalled_s = behind_s, stalled_s
        return shared

    def timed(
        self, messages: Generator[bytes, None, None], *, taken: Callable[[int], None]
    ) -> Generator[bytes, None, None]:
        """Yield messages, and count the time until each has been read.

        Args:
            messages: The messages of the stream.
            taken: Is called with the size of each message after it has been read.
        """
        counts = self.counts
        ended = counts.behind_since = time.monotonic()
        try:
            for message in messages:
                counts.in_flight_bytes = len(message)
                # First, so that the thread that makes messages counts nothing twice.
                counts.behind_since = None
                began = counts.sending_since = time.monotonic()
                counts.behind_s += began - ended
                try:
                    yield message
                finally:
                    counts.sending_since = None
                    ended = counts.behind_since = time.monotonic()
                    counts.client_wait_s += ended - began
                    counts.in_flight_bytes = 0
                taken(len(message))
        finally:
            counts.behind_since = None
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


def _row(counts: Counts, waits: Waits) -> dict[str, Any]:
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
        "store_wait_s": waits.store_s,
        "decode_wait_s": waits.decode_s,
        "server_wait_s": waits.server_s,
        "client_wait_s": counts.client_wait_s + _since(counts.sending_since),
        "shortage": _shortage_row(about.shortage()),
    }


def _shortage_row(shortage: Shortage | None) -> dict[str, int] | None:
    if shortage is None:
        return None
    return {name: getattr(shortage, name) for name in ("job_bytes", "part_bytes", "needed_bytes")}


def _behind_s(counts: Counts) -> float:
    """Return how long a stream had nothing to send until now, though its client waited."""
    since = counts.behind_since
    if since is None:
        return counts.behind_s - counts.blocked_s
    return counts.behind_s + _since(since) - counts.blocked_s - _since(counts.sending_since)


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


def _by_rank(streams: Iterable[tuple[Counts, Waits]]) -> Iterator[Metric]:
    waits = {
        name: CounterMetricFamily(
            f"headrace_stream_{name}_seconds", text, labels=["dataset", "rank"]
        )
        for name, text in _WAITED.items()
    }
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for counts, waited in streams:
        own = sums.setdefault((counts.dataset, str(counts.rank)), dict.fromkeys(waits, 0.0))
        for name, seconds in zip(
            waits, (*waited, counts.client_wait_s + _since(counts.sending_since)), strict=True
        ):
            own[name] += seconds
    for labels, values in sums.items():
        for name, family in waits.items():
            family.add_metric(labels, values[name])
    yield from waits.values()


def _stalled(seconds: float) -> Metric:
    return CounterMetricFamily(
        "headrace_stalled_seconds",
        "Seconds in which this process got no processor. A rate above 0.1: its limit of processor "
        "time is too low, or others use the machine.",
        value=seconds,
    )


def _in_flight(size: int) -> Metric:
    return GaugeMetricFamily(
        "headrace_in_flight_bytes",
        "Bytes of messages handed to connections and not yet taken by them. Near max_streams times "
        "2 MiB: most clients read more slowly than the server sends.",
        value=size,
    )
