"""How far a conversion is."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    tasks_done: int
    tasks_total: int
    shard_count: int
    sample_count: int
    raw_bytes: int
