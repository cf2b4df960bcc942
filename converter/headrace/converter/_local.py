"""Convert datasets of other layouts on this machine: no Spark, no Java, one thread a core.

It runs the tasks that Spark would run (`ShardTask`) over the pieces of `Pieces`, so that options,
shards, commits and errors are the same. Reading, checksums and compression give the interpreter
lock free, so threads are enough.

Contract of `write_pieces`: as `write_shards`; after a failure or an interrupt no further piece is
begun, and those that are under way are waited for.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.converter._commit import Written
from headrace.converter._function import FunctionPlan
from headrace.converter._outcome import make_task, write_task
from headrace.converter._pieces import Pieces, ReadPieces, selected
from headrace.converter._plan import Wanted, plan_samples
from headrace.converter._progress import Progress
from headrace.converter._tasks import ShardTask

_POLL_S = 0.2  # arbitrary: what a progress bar needs


def write_pieces(
    pieces: Pieces,
    url: str,
    *,
    wanted: Wanted,
    progress: Callable[[Progress], None] | None = None,
    threads: int | None = None,
) -> dict[str, Written]:
    """Write all pieces as one dataset, or as one a split.

    Args:
        pieces: What to read.
        url: Where to.
        wanted: What to make of their samples.
        progress: Called a few times a second, and once when all is done.
        threads: How many pieces to convert at once; `None` is one a core.

    Returns:
        What was written, by split; ``""`` without splits.

    Raises:
        HeadraceError: As `write_shards`.
    """
    chosen = selected(pieces, wanted.columns)
    function = FunctionPlan(ReadPieces(chosen), "arrow", chosen.schema)
    plan = replace(plan_samples(chosen.schema, wanted), function=function)
    tally = _Tally(pieces.count, progress)
    task = make_task(plan, url, options=wanted.options, count=tally.add)
    workers = threads or os.cpu_count() or 1
    return write_task(task, lambda: _run(task, tally, pieces.count, workers), mode=wanted.mode)


class _Tally:
    """Counts what is done, from any thread, and tells of it in the caller's."""

    def __init__(self, total: int, progress: Callable[[Progress], None] | None) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._progress = progress
        self._done = self._shards = self._samples = self._raw_bytes = 0

    def add(self, sample_count: int, raw_bytes: int) -> None:
        with self._lock:
            self._shards += 1
            self._samples += sample_count
            self._raw_bytes += raw_bytes

    def end_piece(self) -> None:
        with self._lock:
            self._done += 1

    def tell(self) -> None:
        if self._progress is not None:
            with self._lock:
                now = Progress(
                    tasks_done=self._done,
                    tasks_total=self._total,
                    shard_count=self._shards,
                    sample_count=self._samples,
                    raw_bytes=self._raw_bytes,
                )
            self._progress(now)


def _run(task: ShardTask, tally: _Tally, count: int, threads: int) -> list[Mapping[str, Any]]:
    stop = threading.Event()

    def convert(piece: int) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = []
        numbers = pa.record_batch({"piece": pa.array([piece], pa.int64())})
        stem = f"{piece:05d}-{task.job}0000"
        # Closed where it is not used up: it removes its shards then.
        with contextlib.closing(task.rows(iter([numbers]), partition=piece, stem=stem)) as made:
            for row in made:
                if stop.is_set():
                    return []
                rows += row.to_pylist()
        tally.end_piece()
        return rows

    pool = ThreadPoolExecutor(threads, thread_name_prefix="headrace-convert")
    running = [pool.submit(convert, piece) for piece in range(count)]
    try:
        _watch(running, tally)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
    tally.tell()
    return [row for future in running for row in future.result()]


def _watch(running: Sequence[Future[list[Mapping[str, Any]]]], tally: _Tally) -> None:
    """Wait for all, or for the first that fails, and raise what it raised."""
    left = set(running)
    while left:
        done, left = wait(left, timeout=_POLL_S, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        tally.tell()
