"""Say in a sentence how a job is doing, from what its streams waited for.

Who is to blame is decided as in clients' statistics, by means over the last half minute; what a
server calls its reader may be the network, the client or the trainer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from headrace.cli.show.texts import counted
from headrace.client import blamed
from headrace.page.live.history import WAITING, Fault, Job, JobSeries, Mark
from headrace.page.live.reasons import advice_on, words_of

Level = Literal["good", "slow", "bad"]
_BUSY: Final = 0.6
"""The share of making from which on the server's processors are the limit."""
_STUCK: Final = 0.8
"""The share of the time for the store from which on a job hardly moves."""
_QUIET_S: Final = 120.0
"""Failures further apart than this belong to different faults."""
_FAULT_S: Final = 600.0
"""Ranks that have been away for longer do not come back."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a job is doing.

    Attributes:
        level: How bad it is.
        job: The job.
        text: A sentence without a full stop, after the name of its dataset.
    """

    level: Level
    job: Job
    text: str


def verdict_on(
    job: Job,
    series: JobSeries,
    *,
    marks: Sequence[Mark],
    is_short: bool,
    now: float,
    worst: str = "",
    connected: tuple[int, int] = (0, 0),
) -> Verdict:
    """Judge a job that has open streams.

    Args:
        job: The job.
        series: Its last half hour.
        marks: The events that the caller may see, latest last.
        is_short: Whether the cache is too small for it.
        now: The time, in seconds since 1970.
        worst: Which rank waits the most, and at which step; empty if it is not known.
        connected: How many of its ranks have a stream, and how many there are.
    """
    found = _judged(job, series, marks=marks, is_short=is_short, now=now, worst=worst)
    if connected[0] >= connected[1]:
        return found
    text = f"{connected[0]} of {counted(connected[1], 'rank')} are connected; {found.text}"
    return replace(found, level="slow" if found.level == "good" else found.level, text=text)


def verdict_on_fault(job: Job, fault: Fault, *, now: float) -> Verdict | None:
    """Say that ranks of a job ended with an error, and what to do; None if it is over.

    Args:
        job: The job.
        fault: Its fault.
        now: The time, in seconds since 1970.
    """
    if not fault.ranks or now - fault.wall > _FAULT_S:
        return None
    ranks, code = counted(len(fault.ranks), "rank"), fault.reason
    text = f"{ranks} ended at {_clock(fault.wall)}: {words_of(code)} ({code}); {advice_on(code)}"
    return Verdict("bad", job, text)


def _judged(
    job: Job, series: JobSeries, *, marks: Sequence[Mark], is_short: bool, now: float, worst: str
) -> Verdict:
    recent = series.recent()
    ranks = counted(series.ranks, "rank")
    if recent is None:
        return Verdict("good", job, f"{ranks} just began; rates follow within seconds")
    waiting, rate, store, decode, server, reader, _ = recent.tolist()
    hop, _ = blamed({"store": store, "decode": decode, "server": server}, 1.0)
    worst = worst and f"; {worst}"
    if hop == "store" and round(waiting) and store >= WAITING / 2:
        cause = _store_fault(marks, job, now) or (
            "the cache is too small, so blocks are read again"
            if is_short
            else "reads take longer than the trainer's steps"
        )
        some = f"{min(round(waiting), series.ranks)} of {ranks}"
        is_stuck = not rate or (store >= _STUCK and waiting >= series.ranks)
        text = f"{some} wait for the store: {cause}{worst}"
        return Verdict("bad" if is_stuck else "slow", job, text)
    if not rate and reader < _BUSY:
        return Verdict("bad", job, f"nothing reached {ranks} in the last half minute")
    if decode + server >= _BUSY:
        what = "decoding" if hop == "decode" else "making batches"
        text = f"the server is the limit: it spends {decode + server:.0%} of the time {what}{worst}"
        return Verdict("slow", job, text)
    if not rate:
        text = f"batches wait for {ranks}, which took none in the last half minute"
        return Verdict("slow", job, text)
    get = (
        "gets its batches before it asks"
        if series.ranks == 1
        else "get their batches before they ask"
    )
    return Verdict("good", job, f"{ranks} {get} for them")


def _store_fault(marks: Iterable[Mark], job: Job, now: float) -> str:
    """Return which reads of the store fail, and since when; an empty text if none do."""
    failures = [mark for mark in marks if mark.of == "read" and mark.job[1] in ("", job[1])]
    if not failures or now - failures[-1].until > _QUIET_S:
        return ""
    return f"{words_of(failures[-1].what)} since {_clock(failures[-1].wall)}"


def _clock(wall: float) -> str:
    return time.strftime("%H:%M UTC", time.gmtime(wall))
