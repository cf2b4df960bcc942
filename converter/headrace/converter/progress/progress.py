"""How far a conversion is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a conversion is.

    Attributes:
        tasks_done: Tasks that Spark counts as finished, in all stages of the job.
        tasks_total: Tasks of the stages that Spark knows by now.
        shard_count: Shards of finished tasks. 0 in Spark Connect before the end, which does not
            tell, and so with the samples and bytes in them, also at the end.
        sample_count: Samples in those shards; retried tasks may count twice.
        raw_bytes: Raw bytes of those samples.
        checked_bytes: Of CSV, JSON and text: what the first pass has checked by now. There is no
            task before it has ended.
        unchecked_bytes: What it has left to check; 0 where that is not known, as of packed files.
        shuffled_bytes: What the first pass of a shuffle without Spark has read by now; tasks are
            the parts that it reads, and begin again with the second pass.
        spilled_bytes: What it has put aside on the disk for that.
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
    """Progress of several jobs, one after another, told as that of one.

    Args:
        tell: Is told of it; `None` where nobody is.
    """

    def __init__(self, tell: Callable[[Progress], None] | None) -> None:
        self._tell = tell
        self._last = Progress(0, 0, 0, 0, 0)

    def next(self) -> Callable[[Progress], None] | None:
        """Return what the next job tells; its tasks come on top, shards are those of the first."""
        tell, before = self._tell, self._last
        if tell is None:
            return None

        def told(now: Progress) -> None:
            self._last = replace(
                now,
                tasks_done=before.tasks_done + now.tasks_done,
                tasks_total=before.tasks_total + now.tasks_total,
                shard_count=before.shard_count or now.shard_count,
                sample_count=before.sample_count or now.sample_count,
                raw_bytes=before.raw_bytes or now.raw_bytes,
            )
            tell(self._last)

        return told
