"""The live view: how each job is doing, and what each of its streams waits for."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from headrace.errors import DatasetNotFoundError
from headrace.page.live.history import (
    EPISODE_S,
    RECENT,
    TICK_S,
    TICKS,
    Answer,
    Fault,
    History,
    Job,
    JobSeries,
    Mark,
    world_sizes,
)
from headrace.page.live.reasons import event_of, words_of
from headrace.page.live.verdict import verdict_on, verdict_on_fault
from headrace.page.site import ViewRequest
from headrace.server.access.callers import Caller

_MAX_EVENTS: Final = 12
_MAX_ENDED: Final = 12
_MAX_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class _Stream:
    """An open stream.

    Attributes:
        row: Its counts.
        samples_per_s: Samples per second in the last half minute; None if its rank just began.
        waits: The shares of that time for the store, the making of batches and its reader.
        points: Samples per second since its rank began, and in the last half hour, as points of an
            SVG line of 100 by 20.
        progress: The finished share of the epoch; None if unknown.
    """

    row: dict[str, Any]
    samples_per_s: float | None
    waits: tuple[float, float, float] | None
    points: str
    progress: float | None


def live(request: ViewRequest) -> Response:
    """Show all open streams to operators, and to other callers their own."""
    if request.site.watch is None:
        raise DatasetNotFoundError("this page has no server; `headrace serve --page` has this view")
    return request.html(
        "live.html", **request.site.watch.look(lambda history: _seen(history, request.caller))
    )


def rates_by_dataset(history: History, caller: Caller) -> dict[str, tuple[int, float | None]]:
    """Return the open streams of each dataset that a caller may see, and their samples a second."""
    found: dict[str, tuple[int, float | None]] = {}
    for one in _streams(history, caller):
        ranks, rate = found.get(one.row["dataset"], (0, None))
        if one.samples_per_s is not None:
            rate = (rate or 0.0) + one.samples_per_s
        found[one.row["dataset"]] = ranks + 1, rate
    return found


def _jobs(history: History, caller: Caller) -> dict[Job, JobSeries]:
    return history.jobs(lambda job: _may_see(caller, job))


def _may_see(caller: Caller, job: Job) -> bool:
    return caller.is_operator or (job[0] == caller.name and caller.may_read(job[1]))


def _seen(history: History, caller: Caller) -> dict[str, Any]:
    jobs, now = _jobs(history, caller), time.time()
    streams = _streams(history, caller)
    marks = [mark for mark in history.marks if caller.is_operator or _may_see(caller, mark.job)]
    faults = {job: fault for job, fault in history.faults.items() if _may_see(caller, job)}
    open_jobs = {_place(one.row)[:2] for one in streams}
    running = {job for job, series in jobs.items() if series.ranks} | open_jobs
    worlds = world_sizes(history.latest) if history.latest else {}
    rows = [_job_row(job, jobs.get(job), streams) for job in sorted(running)]
    verdicts = [
        verdict_on(
            row["job"],
            series,
            marks=marks,
            is_short=row["shortage"] is not None,
            now=now,
            worst=_worst(row["job"], streams),
            connected=(series.ranks, max(worlds.get(row["job"], [0]))),
        )
        for row in rows
        if (series := jobs.get(row["job"])) is not None
    ]
    over = [verdict_on_fault(job, fault, now=now) for job, fault in faults.items()]
    verdicts.extend(verdict for verdict in over if verdict is not None)
    return {
        "now": now,
        "streams": streams,
        "jobs": rows,
        "ended": _ended({**dict.fromkeys(faults), **jobs}, faults, running, now),
        "verdicts": sorted(verdicts, key=lambda one: ("bad", "slow", "good").index(one.level)),
        "facts": _facts(history.latest) if caller.is_operator and history.latest else None,
        "charts": _charts(history.times(), jobs, marks),
        "events": [(mark, event_of(mark)) for mark in marks[: -_MAX_EVENTS - 1 : -1]],
    }


def _ended(
    jobs: Mapping[Job, JobSeries | None],
    faults: Mapping[Job, Fault],
    running: Collection[Job],
    now: float,
) -> list[tuple[Job, float, str]]:
    """Return jobs that ended in the last half hour: when, and of which error, in words."""
    found = []
    for job, series in jobs.items():
        fault = faults.get(job)
        if job not in running:
            at = max(series.seen if series else 0.0, fault.wall if fault else 0.0)
            found.append((job, at, words_of(fault.reason) if fault and fault.ranks else ""))
    recent = [one for one in found if now - one[1] <= TICKS * TICK_S]
    return sorted(recent, key=lambda one: -one[1])[:_MAX_ENDED]


def _streams(history: History, caller: Caller) -> list[_Stream]:
    rows = {} if history.latest is None else history.latest.streams
    shown = {
        key: row
        for key, row in sorted(rows.items(), key=lambda item: _place(item[1]))
        if _may_see(caller, _place(row)[:2])
    }
    recent, points = history.streams(list(shown))
    most = np.maximum(np.nan_to_num(points).max(axis=1, initial=0.0, keepdims=True), 1.0)
    return [
        _Stream(
            row,
            None if np.isnan(now[0]) else float(now[0]),
            None if np.isnan(now[0]) else _shown(now[1:].tolist()),
            _line(line),
            min(row["position"] / row["epoch_samples"], 1.0) if row["epoch_samples"] else None,
        )
        for row, now, line in zip(shown.values(), recent, points / most, strict=True)
    ]


def _shown(waits: Sequence[float]) -> tuple[float, float, float]:
    """Return the shares for the store, the making of batches with decoding, and the reader."""
    store, decode, server, reader = waits
    return store, decode + server, reader


def _worst(job: Job, streams: Sequence[_Stream]) -> str:
    """Return which rank of a job waits the most, and at which step."""
    own = [one for one in streams if _place(one.row)[:2] == job]
    worst = max(own, key=lambda one: sum((one.waits or ())[:2]), default=None)
    if worst is None:
        return ""
    return f"rank {worst.row['rank']} waits the most, at step {worst.row['step']}"


def _place(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["caller"], row["dataset"], row["rank"]


def _line(shares: NDArray[np.float64]) -> str:
    """Return the points of a line from the left, 100 wide and 20 high; gaps are left out."""
    step = 100 / (len(shares) - 1)
    return " ".join(
        f"{step * at:.0f},{19 - 18 * share:.0f}"
        for at, share in enumerate(shares.tolist())
        if share == share  # noqa: PLR0124 - not NaN
    )


def _job_row(job: Job, series: JobSeries | None, streams: Sequence[_Stream]) -> dict[str, Any]:
    own = [one for one in streams if _place(one.row)[:2] == job]
    recent = None if series is None else series.recent()
    rates = [one.samples_per_s or 0.0 for one in own]
    ranks = series.ranks if series and series.ranks else len({one.row["rank"] for one in own})
    short = [one.row["shortage"] for one in own if one.row["shortage"] is not None]
    return {
        "job": job,
        "ranks": ranks,
        # Of a rank between two streams no stream tells.
        "samples_per_s": sum(rates)
        if all(rates) and len(own) >= ranks
        else None
        if recent is None
        else float(recent[1]),
        "waits": None if recent is None else _shown(recent[2:6].tolist()),
        "epochs": sorted({one.row["epoch"] for one in own}),
        "progress": min(
            ((one.row["epoch"], one.progress) for one in own if one.progress is not None),
            default=(0, None),
        )[1],
        "shortage": max(short, key=lambda one: one["job_bytes"], default=None),
    }


def _facts(last: Answer) -> list[tuple[str, str, float]]:
    """Return the name, the format and the value of each figure for operators."""
    hits, misses = (last.total(f"headrace_cache_{each}_total") for each in ("hits", "misses"))
    reads = last.total("headrace_store_fetch_seconds_count")
    took = last.total("headrace_store_fetch_seconds_sum")
    return [
        ("Streams", "count", last.total("headrace_open_streams")),
        ("Cache", "bytes", last.total("headrace_cache_bytes")),
        ("Cache hits", "share", hits / max(hits + misses, 1)),
        ("Mean store read", "ms", 1000 * took / max(reads, 1)),
        ("Failed store reads", "count", last.total("headrace_store_fetch_errors_total")),
        ("Batches in memory", "bytes", last.total("headrace_payload_bytes")),
    ]


def _charts(
    times: list[float], jobs: dict[Job, JobSeries], marks: Sequence[Mark]
) -> list[dict[str, Any]]:
    """Return the charts of the last half hour, as values of JSON."""
    most = sorted(jobs, key=lambda job: -np.nansum(jobs[job].ticks[:, 1]))[:_MAX_LINES]
    callers = {caller for caller, _ in jobs}
    names = [f"{name} ({owner})" if len(callers) > 1 else name for owner, name in most]
    bands = bands_of(marks)
    return [
        {
            "id": key,
            "title": title,
            "unit": unit,
            "times": [round(at) for at in times],
            "lines": [
                {"name": name, "values": _json(jobs[job].ticks[:, column], factor)}
                for name, job in zip(names, most, strict=True)
            ],
            "marks": bands,
        }
        for key, title, unit, column, factor in (
            ("rate", "Samples per second", "", 1, 1),
            ("store", "Time spent waiting for the store", "%", 2, 100),
        )
    ]


def bands_of(marks: Iterable[Mark]) -> list[tuple[int, int, str, str]]:
    """Return when each event began and ended, its name, and its kind; one for all of a cause."""
    bands: list[tuple[int, int, str, str]] = []
    for mark in marks:
        what = words_of(mark.what).partition(" (")[0] if mark.of else mark.what
        name = f"{mark.job[1]}: {what}" if mark.job[1] else what
        began, until = round(mark.wall), round(mark.until)
        for other in bands:
            if other[2] == name and began - other[1] <= EPISODE_S:
                began, until = min(began, other[0]), max(until, other[1])
                bands.remove(other)
                break
        bands.append((began, until, name, mark.kind))
    return bands


def _json(values: NDArray[np.float64], factor: int) -> list[float | None]:
    """Return means over half a minute, since messages come in bursts; None where there are none."""
    known, kernel = ~np.isnan(values), np.ones(RECENT)
    sums, counts = (
        np.convolve(each, kernel)[: len(values)] for each in (np.nan_to_num(values), known)
    )
    means = factor * sums / np.maximum(counts, 1)
    return [
        float(f"{mean:.4g}") if is_known else None
        for mean, is_known in zip(means.tolist(), known.tolist(), strict=True)
    ]
