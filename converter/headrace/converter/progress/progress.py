"""How far a conversion is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a conversion is.

    Attributes:
        tasks_done: Tasks that Spark counts as finished, in all stages of the job.
        tasks_total: Tasks of all stages that Spark knows so far.
        shard_count: Shards of finished tasks. Spark Connect does not report them: there they are 0
            before the end, and samples and bytes are 0 even then.
        sample_count: Samples in those shards; retried tasks may count twice.
        raw_bytes: Raw bytes of those samples.
        checked_bytes: Bytes of CSV, JSON and text that the first pass has checked so far. Tasks
            start only after that pass.
        unchecked_bytes: Bytes left to check; 0 if unknown, as for compressed files.
        shuffled_bytes: Bytes that the first pass of a shuffle without Spark has read so far. Tasks
            are the parts that it reads; they are counted from 0 again in the second pass.
        spilled_bytes: Bytes that this shuffle has written to disk.
    """

    tasks_done: int
    tasks_total: int
    shard_count: int
    sample_count: int
    raw_bytes: int
    checked_bytes: int = 0
    unchecked_bytes: int = 0
    shuffled_bytes: int = 0
    spilled_bytes: int = 0


class Stages:
    """Reports several jobs, one after another, as the progress of a single one.

    Args:
        report: The function to call with progress; `None` for none.
    """

    def __init__(self, report: Callable[[Progress], None] | None) -> None:
        self._report = report
        self._last = Progress(0, 0, 0, 0, 0)

    def next(self) -> Callable[[Progress], None] | None:
        """Return the function for the next job: its tasks are added, its shards are not."""
        report, before = self._report, self._last
        if report is None:
            return None

        def add(now: Progress) -> None:
            self._last = replace(
                now,
                tasks_done=before.tasks_done + now.tasks_done,
                tasks_total=before.tasks_total + now.tasks_total,
                shard_count=before.shard_count or now.shard_count,
                sample_count=before.sample_count or now.sample_count,
                raw_bytes=before.raw_bytes or now.raw_bytes,
            )
            report(self._last)

        return add
