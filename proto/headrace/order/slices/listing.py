"""Listing: which samples any rank gets at any step, from shard tables alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order.slices.slicing import EpochPlan, RankBatch


class AnyOrder(Protocol):
    """An `Order` or a `MixtureOrder`, with or without filters."""

    @property
    def sample_count(self) -> int:
        """Positions of an epoch."""
        ...

    def sample_ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at the positions [start, stop) of an epoch."""
        ...


def batch_sample_ids(order: AnyOrder, epoch: int, batch: RankBatch) -> NDArray[np.int64]:
    """Return the sample ids of a rank's batch; repeats that fill it up come last.

    Args:
        order: The order.
        epoch: The epoch.
        batch: A batch of `headrace.order.EpochPlan.batch`.

    Returns:
        (batch.sample_count,) int64.
    """
    sample_ids = order.sample_ids(epoch, batch.start, batch.stop)
    if not batch.pad_positions:
        return sample_ids
    # Pads repeat positions of this global batch, so the order's caches hold them.
    whole = order.sample_ids(epoch, batch.position, batch.next_position)
    return np.append(sample_ids, whole[np.array(batch.pad_positions) - batch.position])


def rank_batches(
    order: AnyOrder,
    plan: EpochPlan,
    *,
    epoch: int,
    rank: int,
    world_size: int,
) -> Iterator[tuple[RankBatch, NDArray[np.int64]]]:
    """Yield a rank's batches of one epoch with their sample ids, starting at the plan's base.

    Args:
        order: The order.
        plan: How the epoch is cut; its `sample_count` must be that of the order.
        epoch: The epoch.
        rank: In [0, `world_size`).
        world_size: Number of ranks.
    """
    for index in range(plan.batch_count):
        batch = plan.batch(index, rank=rank, world_size=world_size)
        yield batch, batch_sample_ids(order, epoch, batch)
