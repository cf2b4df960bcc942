"""Keep the last half hour of a server in a few megabytes.

Contract:

1. A job is what one caller reads of one dataset. What is counted is a rank of a job, over all
   streams that it opens one after the other: with short epochs, each loop opens one. A rank is
   gone when its stream ends; if it opened several, `REOPEN_S` later; after an error, at once.
2. A tick is made from two answers at least `TICK_S` apart. It has rates and shares of the time
   between them. What a new rank gets before its second answer does not count, since that fills
   its reader's queues, faster than anybody trains.
3. The last `TICKS` ticks are kept, each with at most `MAX_STREAMS` ranks and `MAX_JOBS` jobs, in
   arrays of fixed width: less than `MAX_BYTES` in total, whatever happens.
4. A rank whose stream ended with an error is at fault until a new stream of it gets samples, or
   one of a job with too few ranks to have it.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

TICK_S: Final = 5.0
TICKS: Final = 360
RECENT: Final = 6
"""Ticks over which rates and waits are computed; shorter times contain too few messages."""
REOPEN_S: Final = 10.0
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
_Place = tuple[str, str, int]
FETCH_ERRORS: Final = "headrace_store_fetch_errors_total"
_FAILED_CALLS: Final = "headrace_failed_calls_total"
_QUIET: Final = frozenset({"OK", "CANCELLED", ""})
_MOVING: Final = frozenset({"DRAINING", "REBALANCE"})
"""Streams that end so are opened again at once, perhaps elsewhere."""
_SUMS: Final = ("samples", "store_wait_s", "decode_wait_s", "server_wait_s", "client_wait_s")
_STREAM: Final = np.dtype([("number", "u4"), ("rate", "f4"), ("waits", "u1", 4)])
_JOB: Final = np.dtype([("waiting", "u2"), ("counted", "u2"), ("rate", "f4"), ("waits", "f4", 4)])
_RANKS: Final = re.compile(r"of (\d+)$")


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of a server at one time.

    Attributes:
        at: The time, on a monotonic clock.
        wall: The same time, in seconds since 1970.
        streams: The counts of its open streams, by a key that is unique among them.
        counted: Sums of counters, by name, reason and dataset; the last may be left out.
        ended: The counts of streams that ended a moment ago, with the reason as ``ended``.
    """

    at: float
    wall: float
    streams: Mapping[Any, dict[str, Any]]
    counted: Mapping[tuple[str, ...], float]
    ended: Mapping[Any, dict[str, Any]] = field(default_factory=dict)

    def total(self, name: str) -> float:
        """Return a counter's sum over all reasons."""
        return sum(value for key, value in self.counted.items() if key[0] == name)


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on the server, or in one job.

    Attributes:
        wall: When it began, in seconds since 1970.
        what: What happened: a reason, or words for a rescale.
        count: How often it happened.
        until: When it was last seen.
        kind: Whether something failed, streams moved, or a job has another number of ranks.
        of: What is counted.
        job: The job that it concerns; without a caller if it is all jobs of a dataset, and without
            a dataset if it is the server.
    """

    wall: float
    what: str
    count: int
    until: float
    kind: Literal["fault", "drain", "rescale"]
    of: Literal["read", "call", "stream", ""] = ""
    job: Job = ("", "")


@dataclass(frozen=True, slots=True)
class Fault:
    """Ranks of a job that ended with an error and have not come back.

    Attributes:
        wall: When the last one ended, in seconds since 1970.
        reason: The reason of its error.
        ranks: The ranks.
        others: The streams that were open before; what they get is no sign of recovery.
    """

    wall: float
    reason: str
    ranks: frozenset[int]
    others: frozenset[Any] = frozenset()


@dataclass(slots=True, eq=False)
class _Rank:
    """A rank of a job.

    Attributes:
        number: Its number in ticks.
        seen: When it was last seen, on a monotonic clock.
        since: When its sums began; None before its second answer.
        sums: Its samples and waits since then.
        streams: Its open streams.
        opened: All streams that it has opened.
        is_new: Whether no tick has counted it.
    """

    number: int
    seen: float
    since: float | None
    sums: list[float]
    streams: int = 0
    opened: int = 0
    is_new: bool = True


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
        faults: The faults of jobs, latest last.
    """

    def __init__(self) -> None:
        self.latest: Answer | None = None
        self.marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self.faults: dict[Job, Fault] = {}
        self._before: Answer | None = None
        self._ticks: deque[_Tick] = deque(maxlen=TICKS)
        self._ranks: dict[_Place, _Rank] = {}
        self._sizes: dict[Job, tuple[int, float]] = {}
        self._last_number = 0

    def add(self, answer: Answer) -> None:
        """Take a new answer, and make a tick if the last one is old enough."""
        self._count(answer)
        self.latest = answer
        before = self._before
        if before is None or answer.at - before.at >= TICK_S:
            self._before = answer
            if before is not None:
                self._ticks.append(self._tick(answer))
                for mark in _counted_marks(before, answer):
                    self._mark(mark)
            self._mark_rescales(answer)

    def _count(self, answer: Answer) -> None:
        last = self.latest or Answer(answer.at, answer.wall, answer.streams, {}, answer.ended)
        new = [rank for rank in self._ranks.values() if rank.since is None]
        for rank in self._ranks.values():
            rank.streams = 0
        ended = {key: row for key, row in answer.ended.items() if key not in last.ended}
        for key, row in (*ended.items(), *answer.streams.items()):
            rank = self._rank(_place(row), answer)
            is_open = key in answer.streams
            rank.seen, rank.streams = answer.at, rank.streams + is_open
            known = last.streams.get(key)
            rank.opened += known is None or self.latest is None
            if known is not row:
                for at, name in enumerate(_SUMS):
                    rank.sums[at] += row[name] - (known[name] if known else 0.0)
            if is_open and self.faults and row["samples"] > (known["samples"] if known else 0):
                self._recover(key, row)
        for rank in new:
            rank.since, rank.sums = answer.at, [0.0] * len(_SUMS)
        for row in ended.values():
            self._end(row, answer)
        self._ranks = {
            place: rank
            for place, rank in self._ranks.items()
            if rank.streams or (rank.opened > 1 and answer.at - rank.seen <= REOPEN_S)
        }

    def _rank(self, place: _Place, answer: Answer) -> _Rank:
        if (found := self._ranks.get(place)) is None:
            self._last_number = (self._last_number + 1) % (1 << 32)
            since = None if self.latest else answer.at
            found = _Rank(self._last_number, answer.at, since, [0.0] * len(_SUMS))
            self._ranks[place] = found
        return found

    def _end(self, row: Mapping[str, Any], answer: Answer) -> None:
        reason, job = row["ended"], _job(row)
        if reason in _QUIET:
            return
        kind: Literal["fault", "drain"] = "drain" if reason in _MOVING else "fault"
        self._mark(Mark(answer.wall, reason, 1, answer.wall, kind, "stream", job))
        if kind == "fault":
            if not self._ranks[_place(row)].streams:
                self._ranks[_place(row)].opened = 0
            old = self.faults.pop(job, None)
            is_same = old and answer.wall - old.wall <= EPISODE_S
            ranks = (old.ranks if old and is_same else frozenset()) | {row["rank"]}
            others = [
                key for key, one in (self.latest or answer).streams.items() if _job(one) == job
            ]
            self.faults[job] = Fault(answer.wall, reason, ranks, frozenset(others))
            self.faults = dict(list(self.faults.items())[-MAX_JOBS:])

    def _recover(self, key: object, row: Mapping[str, Any]) -> None:
        fault = self.faults.get(_job(row))
        if fault and key not in fault.others:
            size = _size(row) or MAX_STREAMS
            still = {rank for rank in fault.ranks if rank < size and rank != row["rank"]}
            self.faults[_job(row)] = replace(fault, ranks=frozenset(still))

    def _mark(self, mark: Mark) -> None:
        same = [
            one
            for one in self.marks
            if (one.what, one.of, one.job) == (mark.what, mark.of, mark.job)
        ][-1:]
        if mark.of and same and mark.wall - same[0].until <= EPISODE_S:
            self.marks.remove(same[0])
            mark = replace(same[0], until=mark.wall, count=same[0].count + mark.count)
        self.marks.append(mark)

    def _mark_rescales(self, answer: Answer) -> None:
        # A job that starts again is not there for a while.
        for job, sizes in world_sizes(answer).items():
            size = min(sizes)
            was, seen = self._sizes.pop(job, (size, answer.wall))
            if was != size and len(sizes) == 1 and answer.wall - seen <= RESTART_S:
                text = f"rescaled from {was} to {size} ranks"
                self._mark(Mark(answer.wall, text, 1, answer.wall, "rescale", job=job))
            self._sizes[job] = (size if len(sizes) == 1 else was), answer.wall
        self._sizes = dict(list(self._sizes.items())[-MAX_JOBS:])

    def _tick(self, answer: Answer) -> _Tick:
        ranks = {
            place: rank
            for place, rank in self._ranks.items()
            if rank.since is not None
            # Messages come in bursts, so a new rank may get none for a while.
            and answer.at - rank.since
            >= (2 * TICK_S if rank.is_new and not rank.sums[0] else TICK_S / 2)
        }
        seconds = answer.at - np.array([rank.since for rank in ranks.values()], np.float64)
        grown = np.array([rank.sums for rank in ranks.values()]).reshape(-1, len(_SUMS))
        grown /= seconds.reshape(-1, 1)
        opened = np.array([max(rank.streams, 1) for rank in ranks.values()]).reshape(-1, 1)
        rates, waits = grown[:, 0], np.clip(grown[:, 1:] / opened, 0, 1)
        streams = np.zeros(min(len(ranks), MAX_STREAMS), _STREAM)
        streams["number"] = [rank.number for rank in list(ranks.values())[:MAX_STREAMS]]
        streams["rate"] = rates[:MAX_STREAMS]
        streams["waits"] = np.rint(waits * 255)[:MAX_STREAMS]
        for rank in ranks.values():
            rank.since, rank.sums, rank.is_new = answer.at, [0.0] * len(_SUMS), False
        sizes = self.ranks()
        names = tuple(sorted(sizes)[:MAX_JOBS])
        if self._ticks and self._ticks[-1].names == names:
            names = self._ticks[-1].names
        jobs, owners = np.zeros(len(names), _JOB), [place[:2] for place in ranks]
        numbers = {name: at for at, name in enumerate(names)}
        owner = np.array([numbers.get(each, -1) for each in owners], np.int64)
        for at in range(len(names)):
            own = owner == at
            waiting = (waits[own, 0] >= WAITING).sum()
            mean = waits[own].mean(axis=0) if own.any() else 0
            jobs[at] = waiting, own.sum(), rates[own].sum(), mean
        return _Tick(answer.wall, streams, names, jobs)

    def ranks(self) -> dict[Job, int]:
        """Return how many ranks each job has now, those between two streams included."""
        return dict(Counter(place[:2] for place in self._ranks))

    def streams(self, keys: Sequence[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return recent rates and waits of streams' ranks, and their rates since they began.

        A rank with several open streams has them at equal parts.

        Returns:
            ``(streams, 5) float64``, samples per second and the shares of the time for the store,
            decoding, the rest of the server and the reader, NaN for new ranks; and
            ``(streams, POINTS)``, samples per second from the rank's first tick of the last half
            hour to the last one, NaN where there is none.
        """
        rows = self.latest.streams if self.latest else {}
        ranks = [self._ranks.get(_place(rows[key])) if key in rows else None for key in keys]
        numbers = [rank.number if rank else 0 for rank in ranks]
        wanted, at = np.unique(np.array(numbers, np.uint32), return_inverse=True)
        recent, points = np.zeros((len(wanted), 6)), np.zeros((len(wanted), POINTS, 2))
        first = np.zeros(len(wanted), np.int64)
        ticks = [tick.streams[np.isin(tick.streams["number"], wanted)] for tick in self._ticks]
        places = [np.searchsorted(wanted, rows["number"]) for rows in ticks]
        last = len(ticks) - 1
        for number in range(last, -1, -1):
            first[places[number]] = number
        for number, (own, tick) in enumerate(zip(places, ticks, strict=True)):
            span = np.maximum(last - first[own], 1)
            points[own, POINTS - 1 - (last - number) * (POINTS - 1) // span] += np.column_stack(
                [tick["rate"], np.ones(len(tick))]
            )
            if last - number < RECENT:
                recent[own] += np.column_stack(
                    [tick["rate"], tick["waits"] / 255, np.ones(len(tick))]
                )
        parts = np.array([max(rank.streams, 1) if rank else 1 for rank in ranks]).reshape(-1, 1)
        now = _mean(recent)[at]
        now[:, :1] /= parts
        return now, _mean(points)[at][..., 0] / parts

    def jobs(self, is_shown: Callable[[Job], bool]) -> dict[Job, JobSeries]:
        """Return the jobs of the last half hour, as series of ticks."""
        names = sorted({name for tick in self._ticks for name in tick.names if is_shown(name)})
        found = {name: np.full((len(self._ticks), 7), np.nan) for name in names}
        seen = dict.fromkeys(names, 0.0)
        for at, tick in enumerate(self._ticks):
            for name, row in zip(tick.names, tick.jobs, strict=True):
                if name in found:
                    found[name][at, 0] = row["waiting"]
                    if row["counted"]:
                        found[name][at, 1:] = [row["rate"], *row["waits"], row["counted"]]
                    seen[name] = tick.wall
        ranks = self.ranks()
        return {name: JobSeries(ranks.get(name, 0), found[name], seen[name]) for name in names}

    def times(self) -> list[float]:
        """Return when ticks were made, in seconds since 1970."""
        return [tick.wall for tick in self._ticks]


@dataclass(frozen=True, slots=True, eq=False)
class JobSeries:
    """What a job did in the last half hour.

    Attributes:
        ranks: Its ranks now; 0 if it has ended.
        ticks: ``(ticks, 7) float64``: ranks that wait for the store, samples per second, the mean
            shares of the time for the store, decoding, the rest of the server and the reader, and
            the number of ranks that these are of; NaN where the job did not run, or had just
            begun.
        seen: When it last ran, in seconds since 1970.
    """

    ranks: int
    ticks: NDArray[np.float64]
    seen: float = 0.0

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


def _place(row: Mapping[str, Any]) -> _Place:
    return row["caller"], row["dataset"], row["rank"]


def _counted_marks(before: Answer, answer: Answer) -> Iterable[Mark]:
    known = {row["ended"] for row in answer.ended.values()}
    for (name, reason, *dataset), value in sorted(answer.counted.items(), reverse=True):
        grown = int(value - before.counted.get((name, reason, *dataset), 0.0))
        if grown <= 0 or reason in _QUIET:
            continue
        if name == FETCH_ERRORS:
            known.add(reason)
            job = ("", dataset[0] if dataset else "")
            yield Mark(answer.wall, reason, grown, answer.wall, "fault", "read", job)
        # Those of streams, and of reads, are told already.
        elif name == _FAILED_CALLS and reason not in known:
            kind: Literal["fault", "drain"] = "drain" if reason in _MOVING else "fault"
            yield Mark(answer.wall, reason, grown, answer.wall, kind, "call")


def world_sizes(answer: Answer) -> dict[Job, set[int]]:
    """Return the world sizes of each job; several if it is several jobs, or in transition."""
    sizes: dict[Job, set[int]] = {}
    for row in answer.streams.values():
        if size := _size(row):
            sizes.setdefault(_job(row), set()).add(size)
    return sizes


def _size(row: Mapping[str, Any]) -> int:
    """Return the world size that a stream was opened with; 0 if it is not known."""
    found = _RANKS.search(row.get("asked", ""))
    return int(found[1]) if found else 0
