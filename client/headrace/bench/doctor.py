"""Tell from where a client runs whether a server is fast enough, and which hop is too slow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

from headrace.client import (
    Access,
    BatchEvent,
    BatchReader,
    BufferPool,
    Deadlines,
    Place,
    ReadOptions,
    fetch_dataset,
)
from headrace.order import OrderSpec

_MIB = 1 << 20
_CALLS = 11
_MARGIN = 1.2
"""A job needs some margin over its mean; below it the server is only just fast enough."""

_REMEDIES = {
    "store": "the server waits for its store: give it a larger cache or --cache-dir, more "
    "--fetch-threads, or move it closer to the bucket",
    "server": "the server is the limit: give it more cores, --workers, or another replica",
    "network": "the network is the limit: move the server closer, or read fewer --columns",
    "client": "this process is the limit: use fewer ranks on this machine, or faster cores",
    "copy": "the copy to the device is the limit",
}


@dataclass(frozen=True, slots=True)
class Need:
    """The need of a job.

    Attributes:
        samples_per_s: Samples per second of one rank.
        batch_size: Samples per batch of that rank.
        columns: Columns that it reads; empty for all.
    """

    samples_per_s: float
    batch_size: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of the same batches.

    Attributes:
        samples_per_s: Samples per second.
        mib_per_s: MiB of payload per second.
        first_batch_ms: From opening to the first batch.
        hops: The share of the time by hop: store, server, network, client, copy.
    """

    samples_per_s: float
    mib_per_s: float
    first_batch_ms: float
    hops: dict[str, float]

    @property
    def slowest(self) -> str:
        """Return the hop that took most of the time."""
        return max(self.hops, key=lambda hop: self.hops[hop])


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a diagnosis.

    Attributes:
        need: The need of the job.
        round_trip_ms: The median duration of a call that does nothing.
        first: The first pass, for which uncached blocks come from the server's store.
        again: The second pass over the same batches, from the cache as far as they fit.
        fed: Whether the server is fast enough.
        hop: The hop that is too slow, or would be the first to become so.
        verdict: The answer in a sentence.
        remedy: What would help, or an empty text.
    """

    need: Need
    round_trip_ms: float
    first: Pass
    again: Pass
    fed: bool
    hop: str
    verdict: str
    remedy: str


def diagnose(
    targets: Sequence[str], dataset: str, need: Need, *, seconds: float, access: Access
) -> Diagnosis:
    """Read as one rank of the job would, twice.

    Args:
        targets: Servers of the dataset.
        dataset: Its name.
        need: What the job needs.
        seconds: The duration of the first pass.
        access: How to authenticate.

    Raises:
        HeadraceError: No server answered, or the server refused the call.
    """
    deadlines = Deadlines(connect_s=30, give_up_s=60)
    options = ReadOptions(
        dataset,
        # A separate seed, so that blocks read by others do not make the first pass look faster.
        OrderSpec(seed=int(time.time()), unit=need.batch_size),
        need.batch_size,
        columns=need.columns,
    )
    round_trip_ms = _round_trip_ms(targets[0], dataset, deadlines, access)
    first, batches = _read(targets, options, deadlines, access, seconds=seconds, most=1 << 40)
    again, _ = _read(targets, options, deadlines, access, seconds=seconds, most=batches)
    return judge(need, first, again, round_trip_ms=round_trip_ms)


def judge(need: Need, first: Pass, again: Pass, *, round_trip_ms: float) -> Diagnosis:
    """Draw the conclusion; a pure function."""
    wanted = need.samples_per_s
    cold_only = first.samples_per_s < wanted <= again.samples_per_s
    hop = "store" if cold_only else again.slowest
    rate = min(first.samples_per_s, again.samples_per_s)
    fed = rate >= wanted
    if fed and rate >= wanted * _MARGIN:
        verdict = (
            f"this job gets {rate:,.0f} samples/s and needs {wanted:,.0f}: the server is fast "
            "enough"
        )
    elif fed:
        verdict = (
            f"this job gets {rate:,.0f} samples/s and needs {wanted:,.0f}: the server is only just "
            f"fast enough; the {hop} is the first to become too slow"
        )
    elif cold_only:
        verdict = (
            f"this job will wait until the cache is warm: it gets {first.samples_per_s:,.0f} "
            f"samples/s from the store and {again.samples_per_s:,.0f} from the cache, and needs "
            f"{wanted:,.0f}"
        )
    else:
        verdict = (
            f"this job will wait: it gets {rate:,.0f} samples/s and needs {wanted:,.0f}; most of "
            f"the time goes to the {hop}"
        )
    remedy = "" if fed and rate >= wanted * _MARGIN else _REMEDIES[hop]
    return Diagnosis(need, round_trip_ms, first, again, fed, hop, verdict, remedy)


def _round_trip_ms(target: str, dataset: str, deadlines: Deadlines, access: Access) -> float:
    taken = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        fetch_dataset(target, dataset, deadlines=deadlines, access=access)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3


def _read(
    targets: Sequence[str],
    options: ReadOptions,
    deadlines: Deadlines,
    access: Access,
    *,
    seconds: float,
    most: int,
) -> tuple[Pass, int]:
    reader = BatchReader(
        targets,
        options,
        place=Place(),
        deadlines=deadlines,
        allocate=BufferPool(idle_bytes=64 * _MIB).take,
        access=access,
    )
    start = time.perf_counter()
    reader.clock.begin_wait()
    first_s, samples, payload_bytes, batches = 0.0, 0, 0, 0
    try:
        for event in reader.events():
            if not isinstance(event, BatchEvent):
                continue
            first_s = first_s or time.perf_counter() - start
            samples += event.header.sample_count
            payload_bytes += event.header.payload_bytes
            batches += 1
            if batches >= most or time.perf_counter() - start >= seconds:
                break
    finally:
        reader.close()
    taken = time.perf_counter() - start
    spent = reader.clock.waited()
    hops = {field.name: getattr(spent, field.name) / taken for field in fields(spent)}
    found = Pass(samples / taken, payload_bytes / _MIB / taken, first_s * 1e3, hops)
    return found, batches
