"""Compute the timeline of a run: waiting times and faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.loadtest.swarm.rank import RankResult
from headrace.loadtest.swarm.swarm import SwarmResult


@dataclass(frozen=True, slots=True)
class Mark:
    """An event in a run.

    Attributes:
        at_s: Its time, as ``time.time()``.
        what: Its short name, such as ``kill`` or ``6 ranks``.
    """

    at_s: float
    what: str


def waiting_share(results: Sequence[RankResult], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of time that ranks waited for batches, between consecutive edges.

    First batches count too. While no rank reads, the share is NaN.

    Args:
        results: The results of the ranks.
        edges: Increasing times, as ``time.time()``.
    """
    found = [result.records for result in results if result.records.size]
    ends = np.concatenate([np.empty(0), *(records["at_s"] for records in found)])
    waits = np.concatenate([np.empty(0), *(records["wait_s"] for records in found)])
    first_starts = np.array([records["at_s"][0] - records["wait_s"][0] for records in found])
    last_ends = np.array([records["at_s"][-1] for records in found])
    waited = np.diff(_elapsed(ends - waits, waits, edges))
    reading = np.diff(_elapsed(first_starts, last_ends - first_starts, edges))
    with np.errstate(invalid="ignore", divide="ignore"):
        share: NDArray[np.float64] = np.where(reading > 0, waited / reading, np.nan)
    return np.minimum(share, 1.0)


def _elapsed(
    starts: NDArray[np.float64], lengths: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the total length of all intervals before each edge."""
    return np.array([np.clip(edge - starts, 0.0, lengths).sum() for edge in edges])


def marks_of(swarm: SwarmResult) -> list[Mark]:
    """Return the events of a run: rescales, crashes of all trainers and pauses of a rank."""
    found = []
    starts = [_start_of(swarm, number) for number in range(len(swarm.generations))]
    for number in range(1, len(swarm.generations)):
        start, before = starts[number], swarm.generations[number - 1].world_size
        if start is not None:
            ranks = swarm.generations[number].world_size
            found.append(Mark(start, f"{ranks} ranks" if ranks != before else "crash"))
    for pause in swarm.spec.pauses:
        step = int(swarm.spec.steps * pause.share)
        for number, generation in enumerate(swarm.generations):
            if generation.first_step <= step < generation.end_step:
                found += [
                    Mark(float(result.records["at_s"][step - generation.first_step]), "pause")
                    for result in swarm.results
                    if result.seat.generation == number
                    and (result.seat.rank, result.seat.job) == (pause.rank, 0)
                    and result.records.size > step - generation.first_step
                ]
    return found


def _start_of(swarm: SwarmResult, generation: int) -> float | None:
    """Return when the first rank of a generation started to wait, or None."""
    return min(
        (
            float(result.records["at_s"][0] - result.records["wait_s"][0])
            for result in swarm.results
            if result.seat.generation == generation and result.records.size
        ),
        default=None,
    )
