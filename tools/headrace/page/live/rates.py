"""Compute rates, waits and events from the answers of a server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.page.live.watch import Answer

RECENT_S: Final = 30.0
"""Seconds over which a rate is computed; shorter times contain too few messages."""
WAITS_S: Final = 120.0
"""Seconds over which waits are computed."""

_ENDINGS: Final = "headrace_ended_streams_total"
_FAULTS: Final = ("headrace_store_fetch_errors_total", "headrace_failed_calls_total")
_QUIET: Final = frozenset({"OK", "CANCELLED", ""})


@dataclass(frozen=True, slots=True)
class StreamRate:
    """An open stream.

    Attributes:
        row: Its counts.
        samples_per_s: Samples per second over the last `RECENT_S`.
        store: The share of the last `WAITS_S` in which it waited for the store.
        making: The share in which the server made its batches.
        reader: The share in which it waited for its reader.
        progress: The finished share of the epoch; None if unknown.
    """

    row: dict[str, Any]
    samples_per_s: float
    store: float
    making: float
    reader: float
    progress: float | None


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on the server.

    Attributes:
        ago_s: How many seconds ago.
        what: Its name.
        count: How often it happened.
    """

    ago_s: float
    what: str
    count: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """A cache that is too small for the jobs of a dataset.

    Attributes:
        dataset: The name of what they read.
        job_bytes: What the job of them needs that needs most.
        part_bytes: How much of the cache that job may use.
        needed_bytes: What all jobs of its process need together.
    """

    dataset: str
    job_bytes: int
    part_bytes: int
    needed_bytes: int


def shortages(streams: Iterable[StreamRate]) -> list[Shortage]:
    """Return the worst shortage of each dataset that is read, sorted by name."""
    found: dict[str, Shortage] = {}
    for row in (one.row for one in streams if one.row["shortage"] is not None):
        shortage = Shortage(row["dataset"], **row["shortage"])
        worst = found.setdefault(shortage.dataset, shortage)
        if shortage.job_bytes > worst.job_bytes:
            found[shortage.dataset] = shortage
    return [found[name] for name in sorted(found)]


def stream_rates(
    answers: Sequence[Answer], is_shown: Callable[[dict[str, Any]], bool]
) -> list[StreamRate]:
    """Return the open streams to show, sorted by caller, dataset and rank."""
    if not answers:
        return []
    last = answers[-1]
    found = [
        _stream_rate(number, row, answers) for number, row in last.streams.items() if is_shown(row)
    ]
    return sorted(found, key=lambda one: (one.row["caller"], one.row["dataset"], one.row["rank"]))


def _stream_rate(number: object, row: dict[str, Any], answers: Sequence[Answer]) -> StreamRate:
    at = answers[-1].at
    recent = _first_since(number, answers, at - RECENT_S)
    lately = _first_since(number, answers, at - WAITS_S)

    def share(name: str) -> float:
        if lately is None:
            return 0.0
        old, began = lately
        grown = float(row[name]) - float(old[name])
        return min(max(grown / max(at - began, 1e-9), 0.0), 1.0)

    rate = 0.0 if recent is None else (row["samples"] - recent[0]["samples"]) / (at - recent[1])
    store = share("store_wait_s")
    making = max(share("made_s") - store, 0.0)
    total = row["epoch_samples"]
    progress = min(row["position"] / total, 1.0) if total else None
    return StreamRate(row, rate, store, making, share("client_wait_s"), progress)


def _first_since(
    number: object, answers: Sequence[Answer], since: float
) -> tuple[dict[str, Any], float] | None:
    """Return the counts of a stream in the first answer with it since a given time."""
    for answer in answers[:-1]:
        if answer.at >= since and number in answer.streams:
            return answer.streams[number], answer.at
    return None


def totals(answers: Sequence[Answer], name: str) -> list[tuple[float, float]]:
    """Return how many seconds ago a counter grew at which rate, between consecutive answers."""
    if not answers:
        return []
    at = answers[-1].at
    return [
        (at - later.at, max(later.total(name) - one.total(name), 0.0) / (later.at - one.at))
        for one, later in itertools.pairwise(answers)
        if later.at > one.at
    ]


def marks(answers: Sequence[Answer]) -> list[Mark]:
    """Return faults, drains and rebalances, latest first."""
    found = []
    for one, later in itertools.pairwise(answers):
        for (name, reason), value in later.counted.items():
            grown = value - one.counted.get((name, reason), 0.0)
            if grown > 0 and reason not in _QUIET and (name == _ENDINGS or name in _FAULTS):
                found.append(Mark(answers[-1].at - later.at, reason, int(grown)))
    return found[::-1]
