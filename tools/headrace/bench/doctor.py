"""Measure whether a server is fast enough for a job, and which hop is too slow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.read_batches import DEADLINES, Reading, read_batches
from headrace.client import Access, CacheShortage, ReadOptions, fetch_dataset
from headrace.order import OrderSpec

_MIB = 1 << 20
_CALLS = 11
_MARGIN = 1.2
"""With less margin over the mean rate of a job, a server is only just fast enough."""

_REMEDIES = {
    "store": "the server waits for its store: give it a larger cache, a --cache-dir "
    "or more --fetch-threads, or move it closer to the bucket",
    "decode": "the server's processors are the limit, as it decodes blocks or runs stages: give it "
    "more cores, --workers, or another replica",
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
    """The result of reading some batches.

    Attributes:
        samples_per_s: Samples per second.
        mib_per_s: MiB of payload per second.
        first_batch_ms: Milliseconds from opening to the first batch.
        hops: The share of the time spent in each hop: store, decode, server, network, client, copy.
        cache_shortage: How the server's cache is too small for the job; None if it is not.
    """

    samples_per_s: float
    mib_per_s: float
    first_batch_ms: float
    hops: dict[str, float]
    cache_shortage: CacheShortage | None = None

    @property
    def slowest(self) -> str:
        """Return the hop that took the most time."""
        return max(self.hops, key=lambda hop: self.hops[hop])


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a diagnosis.

    Attributes:
        need: The need of the job.
        round_trip_ms: The median duration of a small call.
        first: The first pass, with uncached blocks from the server's store.
        again: The second pass over the same batches, from the cache as far as they fit.
        fed: Whether the server is fast enough.
        hop: The hop that is too slow, or would be the first to become so.
        verdict: The answer in a sentence.
        remedy: What would help; empty if nothing has to.
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
    """Read the same batches twice, as one rank of the job would.

    Args:
        targets: Servers of the dataset.
        dataset: Its name.
        need: What the job needs.
        seconds: The duration of the first pass.
        access: How to authenticate.

    Raises:
        HeadraceError: No server answered, or the server refused the call.
    """
    options = ReadOptions(
        dataset,
        # A new seed, so that blocks that others have read do not speed up the first pass.
        OrderSpec(seed=int(time.time()), unit=need.batch_size),
        need.batch_size,
        columns=need.columns,
    )
    round_trip_ms = _round_trip_ms(targets[0], dataset, access)
    first = read_batches(targets, options, seconds=seconds, access=access)
    again = read_batches(
        targets, options, seconds=seconds, max_batches=first.batches, access=access
    )
    return judge(need, _pass_of(first), _pass_of(again), round_trip_ms=round_trip_ms)


def judge(need: Need, first: Pass, again: Pass, *, round_trip_ms: float) -> Diagnosis:
    """Compare the measurements with the need."""
    needed = need.samples_per_s
    cold_only = first.samples_per_s < needed <= again.samples_per_s
    hop = "store" if cold_only else again.slowest
    rate = min(first.samples_per_s, again.samples_per_s)
    fed = rate >= needed
    if fed and rate >= needed * _MARGIN:
        verdict = (
            f"this job gets {rate:,.0f} samples/s and needs {needed:,.0f}: the server is fast "
            "enough"
        )
    elif fed:
        verdict = (
            f"this job gets {rate:,.0f} samples/s and needs {needed:,.0f}: the server is only just "
            f"fast enough; the {hop} is the first to become too slow"
        )
    elif cold_only:
        verdict = (
            f"this job will wait until the cache is warm: it gets {first.samples_per_s:,.0f} "
            f"samples/s from the store and {again.samples_per_s:,.0f} from the cache, and needs "
            f"{needed:,.0f}"
        )
    else:
        verdict = (
            f"this job will wait: it gets {rate:,.0f} samples/s and needs {needed:,.0f}; most of "
            f"the time goes to the {hop}"
        )
    remedy = "" if fed and rate >= needed * _MARGIN else _REMEDIES[hop]
    return Diagnosis(need, round_trip_ms, first, again, fed, hop, verdict, remedy)


def _round_trip_ms(target: str, dataset: str, access: Access) -> float:
    durations = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        fetch_dataset(target, dataset, deadlines=DEADLINES, access=access)
        durations.append(time.perf_counter() - start)
    return statistics.median(durations) * 1e3


def _pass_of(read: Reading) -> Pass:
    return Pass(
        read.samples / read.seconds,
        read.payload_bytes / _MIB / read.seconds,
        read.first_s * 1e3,
        {hop: seconds / read.seconds for hop, seconds in read.waited_s.items()},
        read.cache_shortage,
    )
