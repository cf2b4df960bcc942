"""Make orders, and divide their batches among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import (
    EndMode,
    EpochPlan,
    Order,
    OrderSpec,
    RankBatch,
    batch_sample_ids,
    table_of,
)
from headrace.storage import OpenDataset

MAX_RANKS: Final = 1024
MAX_SHOWN: Final = 1 << 16
"""The maximum number of samples of a global batch to compute."""


@dataclass(frozen=True, slots=True)
class Deal:
    """A step of an epoch, and how its batch is divided among ranks.

    Attributes:
        epoch: The epoch.
        step: The step, counted from the start of the epoch.
        global_batch_size: Samples per batch over all ranks.
        world_size: The number of ranks.
        end: How to handle an incomplete last batch.
    """

    epoch: int
    step: int
    global_batch_size: int
    world_size: int
    end: EndMode = EndMode.DROP_LAST

    def __post_init__(self) -> None:
        if self.world_size > min(MAX_RANKS, self.global_batch_size):
            raise BadArgumentError(
                f"{self.world_size} ranks share a batch of {self.global_batch_size}; expected at "
                f"most {MAX_RANKS} ranks, and at least one sample per rank",
                field="world_size",
            )
        if self.global_batch_size > MAX_SHOWN:
            raise BadArgumentError(
                f"a page shows batches of at most {MAX_SHOWN} samples", field="batch"
            )


@dataclass(frozen=True, slots=True, eq=False)
class RankPart:
    """The part of a batch that one rank gets.

    Attributes:
        rank: The rank.
        batch: Its part of the batch.
        sample_ids: The ids of its samples, ``(samples,) int64``.
        shards: The number of shards with these samples.
        blocks: The number of blocks with these samples.
    """

    rank: int
    batch: RankBatch
    sample_ids: NDArray[np.int64]
    shards: int
    blocks: int


def order_of(dataset: OpenDataset, spec: OrderSpec) -> Order:
    """Return the order of a dataset.

    Raises:
        BadArgumentError: The dataset has no samples.
    """
    if not dataset.sample_count:
        raise BadArgumentError("the dataset has no samples, so it has no order", field="dataset")
    return Order(spec, table_of(dataset.stretches()))


def rank_parts(dataset: OpenDataset, order: Order, deal: Deal) -> list[RankPart]:
    """Return the part of a batch for each rank.

    Raises:
        PositionPastEndError: The epoch has no such batch.
    """
    plan = plan_of(order, deal)
    ends = np.cumsum(dataset.shard_sample_counts)
    parts = []
    for rank in range(deal.world_size):
        batch = plan.batch(deal.step, rank=rank, world_size=deal.world_size)
        ids = batch_sample_ids(order, deal.epoch, batch)
        blocks, _ = dataset.locate(ids)
        shards = np.unique(np.searchsorted(ends, ids, side="right"))
        parts.append(RankPart(rank, batch, ids, shards.size, np.unique(blocks).size))
    return parts


def plan_of(order: Order, deal: Deal) -> EpochPlan:
    """Return how an epoch is divided into batches."""
    return EpochPlan(order.sample_count, 0, deal.global_batch_size, deal.end)
