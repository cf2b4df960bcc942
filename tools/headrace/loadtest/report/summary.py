"""Summarize the records of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.loadtest.swarm.rank import RankResult
from headrace.loadtest.swarm.swarm import SwarmResult


@dataclass(frozen=True, slots=True)
class Summary:
    """The rates and waiting times of the ranks.

    Attributes:
        elapsed_s: Seconds of the whole run, including process starts and rescales.
        reading_s: Seconds from the first batch to the last, including rescales; ``elapsed_s`` if
            there is only one batch.
        samples_per_s: Samples of all ranks per second of ``reading_s``.
        mib_per_s: MiB of payload of all ranks per second of ``reading_s``.
        batches_per_s: Batches of all ranks per second of ``reading_s``.
        first_batch_ms: The median wait of a rank for its first batch, in milliseconds.
        first_batch_worst_ms: The longest wait for a first batch, in milliseconds.
        wait_ms: The wait for later batches in milliseconds, by percentile.
        stalled: The share of the ranks' time spent waiting for batches.
        fairness: The samples per second of the slowest rank, divided by those of the fastest.
        reconnects: The number of failed streams of all ranks.
        errors: The number of failed streams by reason. The server requests ``REBALANCE`` and
            ``DRAINING`` itself.
        failed: The ranks that gave up, with their errors.
        transports: The number of ranks by how their batches came last, and why.
    """

    elapsed_s: float = 0.0
    reading_s: float = 0.0
    samples_per_s: float = 0.0
    mib_per_s: float = 0.0
    batches_per_s: float = 0.0
    first_batch_ms: float = 0.0
    first_batch_worst_ms: float = 0.0
    wait_ms: dict[str, float] = field(default_factory=dict)
    stalled: float = 0.0
    fairness: float = 1.0
    reconnects: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    transports: dict[str, int] = field(default_factory=dict)


_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}


def summarise(swarm: SwarmResult) -> Summary:
    """Return the summary of a run; rates are 0 if no rank received a batch."""
    readers = [result for result in swarm.results if result.records.size]
    failures: Counter[str] = Counter()
    for result in swarm.results:
        failures += result.failures
    failed = tuple(
        f"job {result.seat.job} rank {result.seat.rank}: {result.error}"
        for result in swarm.results
        if result.error
    )
    if not readers:
        return Summary(
            elapsed_s=swarm.elapsed_s,
            reconnects=failures.total(),
            errors=dict(failures),
            failed=failed,
        )
    records = np.concatenate([result.records for result in readers])
    firsts = np.array([result.records["wait_s"][0] for result in readers])
    span_s = float(records["at_s"].max() - records["at_s"].min())
    reading_s = max(1e-9, span_s or swarm.elapsed_s)
    return Summary(
        elapsed_s=swarm.elapsed_s,
        reading_s=reading_s,
        samples_per_s=float(records["sample_count"].sum()) / reading_s,
        mib_per_s=float(records["payload_bytes"].sum()) / reading_s / (1 << 20),
        batches_per_s=records.size / reading_s,
        first_batch_ms=float(np.median(firsts)) * 1e3,
        first_batch_worst_ms=float(firsts.max()) * 1e3,
        wait_ms=_percentiles(later_waits(readers)),
        stalled=_stalled(readers),
        fairness=_fairness(readers),
        reconnects=failures.total(),
        errors=dict(failures.most_common()),
        failed=failed,
        transports=dict(Counter(each.transport for each in readers).most_common()),
    )


def later_waits(results: Sequence[RankResult]) -> NDArray[np.float64]:
    """Return the seconds that ranks waited for each batch except their first."""
    waits = [result.records["wait_s"][1:] for result in results]
    return np.concatenate([np.empty(0), *waits])


def _percentiles(waits: NDArray[np.float64]) -> dict[str, float]:
    if not waits.size:
        return {}
    values = np.percentile(waits, list(_PERCENTILES.values())) * 1e3
    return dict(zip(_PERCENTILES, map(float, values), strict=True))


def _stalled(results: Sequence[RankResult]) -> float:
    waited = sum(float(result.records["wait_s"][1:].sum()) for result in results)
    spans = sum(_span_s(result) for result in results)
    return waited / spans if spans else 0.0


def _fairness(results: Sequence[RankResult]) -> float:
    worst = 1.0
    for generation in {result.seat.generation for result in results}:
        rates = [
            int(result.records["sample_count"][1:].sum()) / _span_s(result)
            for result in results
            if result.seat.generation == generation and result.records.size > 1
        ]
        if rates:
            slowest, fastest = min(rates), max(rates)
            # A rank may get no samples of an incomplete last batch.
            worst = min(worst, slowest / fastest if fastest else 1.0)
    return worst


def _span_s(result: RankResult) -> float:
    return float(result.records["at_s"][-1] - result.records["at_s"][0])
