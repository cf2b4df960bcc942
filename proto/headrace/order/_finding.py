"""Slicing backwards: which ranks get a position of an epoch, in which batch and row."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from headrace.order._slicing import EndMode, EpochPlan, RankBatch


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """Where a position comes.

    Attributes:
        index: Number of the global batch, counted from the plan's base.
        rank: The rank that gets it.
        row: Its row in the rank's batch; rows that fill a batch up come last.
    """

    index: int
    rank: int
    row: int


def find_rows(
    plan: EpochPlan, position: int, *, world_size: int, replication: int = 1
) -> tuple[Row, ...]:
    """Return all rows that hold a position, repeats that fill up the last batch included.

    Args:
        plan: How the epoch is cut.
        position: In [0, `plan.sample_count`).
        world_size: Number of ranks.
        replication: How many consecutive ranks get the same samples.

    Returns:
        The rows, rising; none for a position before the base, and for one that is dropped.

    Raises:
        BadArgumentError: If the coordinates do not fit together.
    """
    index, slot = divmod(position - plan.base, plan.global_batch_size)
    if not 0 <= index < plan.batch_count:
        return ()
    # Rank 0's batch is asked for so that replication is checked before it divides.
    plan.batch(index, rank=0, world_size=world_size, replication=replication)
    parts = world_size // replication

    def batch_of(part: int) -> RankBatch:
        return plan.batch(
            index, rank=part * replication, world_size=world_size, replication=replication
        )

    def start(part: int) -> int:
        return batch_of(part).start

    def pads_before(part: int) -> int:
        batch = batch_of(part)
        return part * plan.global_batch_size // parts - (batch.start - batch.position)

    part = bisect_right(range(parts), position, key=start) - 1
    found = [(part, position - start(part))]
    if plan.end is EndMode.PAD:
        count = batch_of(0).global_sample_count
        for pad in range(slot, plan.global_batch_size - count, count):
            part = bisect_right(range(parts), pad, key=pads_before) - 1
            batch = batch_of(part)
            found.append((part, batch.stop - batch.start + pad - pads_before(part)))
    return tuple(
        sorted(
            Row(index, part * replication + copy, row)
            for part, row in found
            for copy in range(replication)
        )
    )
