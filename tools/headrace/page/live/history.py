"""Keep the last half hour of a server in a few megabytes.

Contract:

1. A tick is made from two answers at least `TICK_S` apart. It has rates and shares of the time
   between them, and only of streams that both answers contain and that were there for a tick
   before them: a new stream fills its reader's queues first, faster than anybody trains. Of a job
   whose streams have all been shorter for 20 seconds, new ones count.
2. The last `TICKS` ticks are kept, each with at most `MAX_STREAMS` streams and `MAX_JOBS` jobs, in
   arrays of fixed width: less than `MAX_BYTES` in total, whatever happens.
3. A job is what one caller reads of one dataset.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

TICK_S: Final = 5.0
TICKS: Final = 360
RECENT: Final = 6
"""Ticks over which rates and waits are computed; shorter times contain too few messages."""
_SHORT: Final = 4
"""Ticks without a rate after which those of new streams count."""
MAX_STREAMS: Final = 1024
MAX_JOBS: Final = 32
MAX_BYTES: Final = 8 << 20
MAX_MARKS: Final = 500
POINTS: Final = 36
EPISODE_S: Final = 60.0
"""Faults of one kind that are no further apart are one event."""
RESTART_S: Final = 600.0
"""A job that comes back after this time is another one."""
WAITING: Final = 0.3
"""The share of its time from which on a rank counts as waiting."""

Job = tuple[str, str]
_ENDINGS: Final = "headrace_ended_streams_total"
FETCH_ERRORS: Final = "headrace_store_fetch_errors_total"
_FAULTS: Final = (FETCH_ERRORS, "headrace_failed_calls_total")
_WORDS: Final = {"STORE_UNAVAILABLE": "the store throttles or does not answer (503, timeouts)"}
_QUIET: Final = frozenset({"OK", "CANCELLED", ""})
_WAITS: Final = ("store_wait_s", "decode_wait_s", "server_wait_s", "client_wait_s")
_STREAM: Final = np.dtype([("number", "u4"), ("rate", "f4"), ("waits", "u1", 4)])
_JOB: Final = np.dtype(
    [("ranks", "u2"), ("waiting", "u2"), ("counted", "u2"), ("rate", "f4"), ("waits", "f4", 4)]
)
_RANKS: Final = re.compile(r"of (\d+)$")


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a server at one time.

    Attributes:
        at: The time, on a monotonic clock.
        wall: The same time, in seconds since 1970.
        streams: The counts of its open streams, by a key that is unique among them.
        counted: Sums of counters, by name and reason.
    """

    at: float
    wall: float
    streams: Mapping[Any, dict[str, Any]]
    counted: Mapping[tuple[str, str], float]

    def total(self, name: str) -> float:
        """Return a counter's sum over all reasons."""
        return sum(value for (found, _), value in self.counted.items() if found == name)


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on the server, or in one job.

    Attributes:
        wall: When it began, in seconds since 1970.
        what: What happened, in words.
        count: How often it happened.
        until: When it was last seen.
        counter: The counter that shows it; empty for a rescale.
        job: The job that it concerns; None for the server.
    """

    wall: float
    what: str
    count: int
    until: float
    counter: str = ""
    job: Job | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Tick:
    wall: float
    streams: NDArray[Any]
    names: tuple[Job, ...]
    jobs: NDArray[Any]


class History:
    """The ticks of the last half hour; for one thread at a time.

    Attributes:
        latest: The latest answer; None before the first.
        marks: Faults, drains, rebalances and rescales, latest last.
    """

    def __init__(self) -> None:
        self.latest: Answer | None = None
        self.marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self._before: Answer | None = None
        self._ticks: deque[_Tick] = deque(maxlen=TICKS)
        self._numbers: dict[Any, int] = {}
        self._born: dict[Any, float] = {}
        self._sizes: dict[Job, tuple[int, float]] = {}
        self._last_number = 0

    def add(self, answer: Answer) -> None:
        """Take a new answer, and make a tick if the last one is old enough."""
        first = answer.at if self.latest else float("-inf")
        self._born = {key: self._born.get(key, first) for key in answer.streams}
        self.latest = answer
        before = self._before
        if before is None or answer.at - before.at >= TICK_S:
            self._before = answer
            self._numbers = {key: self._number(key) for key in answer.streams}
            if before is not None:
                self._ticks.append(self._tick(before, answer))
            self._mark(before or answer, answer)

    def _mark(self, before: Answer, answer: Answer) -> None:
        for mark in _marks(before, answer):
            same = [one for one in self.marks if one.what == mark.what][-1:]
            if same and mark.wall - same[0].until <= EPISODE_S:
                self.marks.remove(same[0])
                self.marks.append(
                    replace(same[0], until=mark.wall, count=same[0].count + mark.count)
                )
            else:
                self.marks.append(mark)
        # A job that starts again is not there for a while.
        for job, sizes in world_sizes(answer).items():
            size = min(sizes)
            was, seen = self._sizes.pop(job, (size, answer.wall))
            if was != size and len(sizes) == 1 and answer.wall - seen <= RESTART_S:
                text = f"rescaled from {was} to {size} ranks"
                self.marks.append(Mark(answer.wall, text, 1, answer.wall, job=job))
            self._sizes[job] = (size if len(sizes) == 1 else was), answer.wall
        self._sizes = dict(list(self._sizes.items())[-MAX_JOBS:])

    def _settled(self, before: Answer, answer: Answer) -> list[Any]:
        last = list(self._ticks)[-_SHORT:]
        short = {
            name
            for name in (last[0].names if len(last) == _SHORT else ())
            if all(
                name in tick.names and not tick.jobs["counted"][tick.names.index(name)]
                for tick in last
            )
        }
        return [
            key
            for key, row in answer.streams.items()
            if key in before.streams
            and (before.at - self._born[key] >= TICK_S or _job(row) in short)
        ]

    def _number(self, key: object) -> int:
        found = self._numbers.get(key)
        if found is None:
            self._last_number = found = (self._last_number + 1) % (1 << 32)
        return found

    def _tick(self, before: Answer, answer: Answer) -> _Tick:
        keys = self._settled(before, answer)
        seconds = max(answer.at - before.at, 1e-9)
        grown = np.array(
            [
                [
                    answer.streams[key][name] - before.streams[key][name]
                    for name in ("samples", *_WAITS)
                ]
                for key in keys
            ]
        ).reshape(-1, 5)
        waits = np.clip(grown[:, 1:] / seconds, 0, 1)
        streams = np.zeros(min(len(keys), MAX_STREAMS), _STREAM)
        streams["number"] = [self._numbers[key] for key in keys[:MAX_STREAMS]]
        streams["rate"] = (grown[:, 0] / seconds)[:MAX_STREAMS]
        streams["waits"] = np.rint(waits * 255)[:MAX_STREAMS]
        owners = [_job(answer.streams[key]) for key in keys]
        names = tuple(sorted({_job(row) for row in answer.streams.values()})[:MAX_JOBS])
        if self._ticks and self._ticks[-1].names == names:
            names = self._ticks[-1].names
        jobs = np.zeros(len(names), _JOB)
        for at, name in enumerate(names):
            own = np.array([owner == name for owner in owners], bool)
            ranks = sum(_job(row) == name for row in answer.streams.values())
            waiting = (waits[own, 0] >= WAITING).sum()
            mean = waits[own].mean(axis=0) if own.any() else 0
            jobs[at] = ranks, waiting, own.sum(), (grown[own, 0] / seconds).sum(), mean
        return _Tick(answer.wall, streams, names, jobs)

    def streams(self, keys: Sequence[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return recent rates and waits of streams, and their rates over half an hour.

        Returns:
            ``(streams, 5) float64``, samples per second and the shares of the time for the store,
            decoding, the rest of the server and the reader, NaN for new streams; and
            ``(streams, POINTS)``, samples per second, NaN where the stream was not open.
        """
        wanted = np.array([self._numbers.get(key, 0) for key in keys], np.uint32)
        recent = np.zeros((len(keys), 6))
        points = np.zeros((len(keys), POINTS, 2))
        ticks = list(self._ticks)
        if len(keys):
            order = np.argsort(wanted)
            for age, tick in enumerate(reversed(ticks)):
                rows = tick.streams[np.isin(tick.streams["number"], wanted)]
                at = order[np.searchsorted(wanted, rows["number"], sorter=order)]
                points[at, POINTS - 1 - age * POINTS // TICKS] += np.column_stack(
                    [rows["rate"], np.ones(len(rows))]
                )
                if age < RECENT:
                    recent[at] += np.column_stack(
                        [rows["rate"], rows["waits"] / 255, np.ones(len(rows))]
                    )
        return _mean(recent), _mean(points)[..., 0]

    def jobs(self, is_shown: Callable[[Job], bool]) -> dict[Job, JobSeries]:
        """Return the jobs of the last half hour, as series of ticks."""
        names = sorted({name for tick in self._ticks for name in tick.names if is_shown(name)})
        found = {name: np.full((len(self._ticks), 7), np.nan) for name in names}
        ranks = dict.fromkeys(names, (0, 0))
        for at, tick in enumerate(self._ticks):
            for name, row in zip(tick.names, tick.jobs, strict=True):
                if name in found:
                    found[name][at, 0] = row["waiting"]
                    if row["counted"]:
                        found[name][at, 1:] = [row["rate"], *row["waits"], row["counted"]]
                    ranks[name] = int(row["ranks"]), at
        last = len(self._ticks) - 1
        return {
            name: JobSeries(ranks[name][0] if ranks[name][1] == last else 0, found[name])
            for name in names
        }

    def times(self) -> list[float]:
        """Return when ticks were made, in seconds since 1970."""
        return [tick.wall for tick in self._ticks]


@dataclass(frozen=True, slots=True, eq=False)
class JobSeries:
    """What a job did in the last half hour.

    Attributes:
        ranks: Its open streams now; 0 if it has ended.
        ticks: ``(ticks, 7) float64``: ranks that wait for the store, samples per second, the mean
            shares of the time for the store, decoding, the rest of the server and the reader, and
            the number of streams that these are of; NaN where the job did not run, or had just
            begun.
    """

    ranks: int
    ticks: NDArray[np.float64]

    def recent(self) -> NDArray[np.float64] | None:
        """Return the means of the last ticks, as a row of `ticks`; None if it has just begun."""
        rows = self.ticks[-RECENT:]
        rows = rows[~np.isnan(rows[:, 1])]
        return rows.mean(axis=0) if len(rows) else None


def _mean(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide sums by their count, which is last; NaN where it is 0."""
    with np.errstate(invalid="ignore"):
        found: NDArray[np.float64] = sums[..., :-1] / sums[..., -1:]
    return found


def _job(row: Mapping[str, Any]) -> Job:
    return row["caller"], row["dataset"]


def _marks(before: Answer, answer: Answer) -> Iterable[Mark]:
    for (name, reason), value in answer.counted.items():
        grown = value - before.counted.get((name, reason), 0.0)
        if grown > 0 and reason not in _QUIET and (name == _ENDINGS or name in _FAULTS):
            what = _WORDS.get(reason, reason)
            yield Mark(answer.wall, what, int(grown), answer.wall, name)


def world_sizes(answer: Answer) -> dict[Job, set[int]]:
    """Return the world sizes of each job; several if it is several jobs, or in transition."""
    sizes: dict[Job, set[int]] = {}
    for row in answer.streams.values():
        if (found := _RANKS.search(row.get("asked", ""))) is not None:
            sizes.setdefault(_job(row), set()).add(int(found[1]))
    return sizes
