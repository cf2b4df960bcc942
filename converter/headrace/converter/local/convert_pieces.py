"""Convert datasets of other layouts on this machine: no Spark, no Java, one thread per core.

It runs the tasks that Spark would run (`ShardTask`) over the pieces of `SourcePieces`, so that
options, shards, commits and errors are the same. Reading, checksums and compression release the
interpreter lock, so threads are enough.

Contract of `write_pieces`: as for `write_shards`. After a failure or an interrupt, no further piece
is started, and the call waits for pieces in progress.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.converter.local.shuffle import ShuffledPieces
from headrace.converter.local.sortedness import Sortedness
from headrace.converter.local.spill_file import free_space, spill_folder_of
from headrace.converter.local.threads import run_each
from headrace.converter.plan.plan import WantedConversion, plan_samples
from headrace.converter.progress.progress import Progress
from headrace.converter.samples.function import FunctionPlan
from headrace.converter.sources.pieces import ReadPieces, SourcePieces, selected
from headrace.converter.tasks.commit import Written
from headrace.converter.tasks.merge import MergeTask, ShardGroup
from headrace.converter.tasks.outcome import make_task, write_task
from headrace.converter.tasks.shard_task import SamplePlan, ShardTask


def write_pieces(
    pieces: SourcePieces,
    url: str,
    *,
    wanted: WantedConversion,
    progress: Callable[[Progress], None] | None = None,
    notice: Callable[[str], None] | None = None,
    threads: int | None = None,
) -> dict[str, Written]:
    """Write all pieces as one dataset, or as one per split.

    Args:
        pieces: The pieces to read.
        url: The URL of the dataset to write.
        wanted: How to convert their samples.
        progress: Called a few times a second, and once at the end.
        notice: Called with the temporary space of a shuffle before it starts, and at the end with
            the column by which the storage order is sorted.
        threads: The number of pieces to convert at once; `None` means one per core.

    Returns:
        The written datasets by split; ``""`` without splits.

    Raises:
        HeadraceError: See `write_shards`.
    """
    chosen = selected(pieces, wanted.columns)
    workers = threads or os.cpu_count() or 1
    write = partial(
        _write,
        url=url,
        samples=plan_samples(chosen.schema, wanted),
        wanted=wanted,
        threads=workers,
        tell=progress or _ignore_progress,
    )
    if wanted.shuffle_seed is None:
        sortedness = Sortedness(chosen.schema)
        written = write(sortedness.watched(chosen))
        if notice is not None and sortedness.advice is not None:
            notice(sortedness.advice)
        return written
    folder = spill_folder_of(wanted.spill_folder)
    with ShuffledPieces(
        chosen, seed=wanted.shuffle_seed, folder=folder, threads=workers
    ) as shuffled:

        def scatter() -> None:
            free_bytes = free_space(folder, chosen.raw_bytes)
            if notice is not None:
                notice(_spill_text(folder, chosen.raw_bytes, free_bytes))
            shuffled.scatter(partial(_tell_first_pass, progress or _ignore_progress, chosen.count))

        return write(shuffled, prepare=scatter)


def _write(
    pieces: SourcePieces,
    *,
    url: str,
    samples: SamplePlan,
    wanted: WantedConversion,
    threads: int,
    tell: Callable[[Progress], None],
    prepare: Callable[[], None] | None = None,
) -> dict[str, Written]:
    """Prepare the pieces, then write them."""
    plan = replace(samples, function=FunctionPlan(ReadPieces(pieces), "arrow", pieces.schema))
    tally = _Tally(tell)
    task = make_task(plan, url, options=wanted.options, count=tally.add)

    def run() -> list[Mapping[str, Any]]:
        if prepare is not None:
            prepare()
        return _run(task, tally, pieces.count, threads)

    merge = MergeInThreads(replace(task, count=None), threads)
    # Files without samples are usually a mistake.
    return write_task(task, run, merge=merge, mode=wanted.mode, least_samples=1)


class MergeInThreads:
    """Merge groups of small shards in threads.

    Groups are numbered from 0 in every call, so each call is an attempt of its own: otherwise its
    shards would have the names of those of the call before.

    Args:
        task: The task that wrote the shards.
        threads: The number of groups to merge at once.
    """

    def __init__(self, task: ShardTask, threads: int) -> None:
        self._task = task
        self._threads = threads
        self._attempts = itertools.count(1)  # pieces use 0

    def __call__(self, groups: tuple[ShardGroup, ...]) -> list[Mapping[str, Any]]:
        """Return the rows that `MergeTask` yields for the groups."""
        merging, attempt = MergeTask(self._task, groups), next(self._attempts)

        def merged(number: int) -> list[Mapping[str, Any]]:
            made = merging.rows(number, attempt=attempt)
            return [row for batch in made for row in batch.to_pylist()]

        with ThreadPoolExecutor(self._threads, thread_name_prefix="headrace-merge") as pool:
            return [row for rows in pool.map(merged, range(len(groups))) for row in rows]


def _tell_first_pass(
    tell: Callable[[Progress], None], total: int, read: int, read_bytes: int, spilled_bytes: int
) -> None:
    """Report the progress of a shuffle's first pass: ``read`` of ``total`` pieces."""
    if read_bytes:
        tell(Progress(read, total, 0, 0, 0, shuffled_bytes=read_bytes, spilled_bytes=spilled_bytes))


def _spill_text(folder: str, raw_bytes: int, free_bytes: int) -> str:
    amount = f"up to {_mebibytes(raw_bytes)}" if raw_bytes else "as much as it reads"
    return (
        f"shuffling writes {amount} of temporary data to {folder}, which has "
        f"{_mebibytes(free_bytes)} free, until the dataset is written"
    )


def _mebibytes(count: int) -> str:
    return f"{-(-count // 2**20):,} MiB"


def _ignore_progress(progress: Progress) -> None:
    del progress


class _Tally:
    """Count finished work in any thread, and report it in the caller's."""

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._tell = tell
        self._done = self._shards = self._samples = self._raw_bytes = 0

    def add(self, sample_count: int, raw_bytes: int) -> None:
        with self._lock:
            self._shards += 1
            self._samples += sample_count
            self._raw_bytes += raw_bytes

    def begin(self, total: int) -> None:
        self._total = total

    def end_piece(self) -> None:
        with self._lock:
            self._done += 1

    def tell(self) -> None:
        with self._lock:
            now = Progress(
                tasks_done=self._done,
                tasks_total=self._total,
                shard_count=self._shards,
                sample_count=self._samples,
                raw_bytes=self._raw_bytes,
            )
        self._tell(now)


def _run(task: ShardTask, tally: _Tally, count: int, threads: int) -> list[Mapping[str, Any]]:
    stop = threading.Event()
    tally.begin(count)

    def convert(piece: int) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = []
        numbers = pa.record_batch({"piece": pa.array([piece], pa.int64())})
        stem = f"{piece:05d}-{task.job}0000"
        # Closed if it is not exhausted, which removes its shards.
        with contextlib.closing(task.rows(iter([numbers]), partition=piece, stem=stem)) as made:
            for row in made:
                if stop.is_set():
                    return []
                rows += row.to_pylist()
        tally.end_piece()
        return rows

    made = run_each(
        convert, count, threads=threads, name="headrace-convert", stop=stop, tell=tally.tell
    )
    tally.tell()
    return [row for rows in made for row in rows]
