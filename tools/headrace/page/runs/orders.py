"""Make orders, and divide their batches among ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.cli.stored.mesh_picture import mesh_ranks
from headrace.client import Mesh
from headrace.client.options.mesh import DATA_AXES, MeshRank
from headrace.errors import BadArgumentError
from headrace.order import (
    EndMode,
    EpochPlan,
    Order,
    OrderSpec,
    RankBatch,
    SequenceLayout,
    batch_sample_ids,
    table_of,
)
from headrace.storage import OpenDataset

MAX_RANKS: Final = 1024
MAX_SHOWN: Final = 1 << 16
"""The maximum number of samples of a global batch to compute."""


Places = Sequence[tuple[MeshRank, str]]
"""The place of each rank in the mesh, in the order of the ranks, and what it gets of sequences."""


@dataclass(frozen=True, slots=True)
class Deal:
    """A step of an epoch, and how its batch is divided among ranks.

    Attributes:
        epoch: The epoch.
        step: The step, counted from the start of the epoch.
        global_batch_size: Samples per batch over all ranks.
        mesh: The mesh of the ranks.
        end: How to handle an incomplete last batch.
        length: Elements of a sequence that is cut along ``cp``; None if none is.
        layout: How it is cut.
    """

    epoch: int
    step: int
    global_batch_size: int
    mesh: Mesh
    end: EndMode = EndMode.DROP_LAST
    length: int | None = None
    layout: SequenceLayout = SequenceLayout.ZIGZAG

    def __post_init__(self) -> None:
        ranks = math.prod(self.mesh.sizes.values())
        if ranks > MAX_RANKS or self.world_size > self.global_batch_size:
            raise BadArgumentError(
                f"{ranks} ranks share a batch of {self.global_batch_size} in {self.world_size} "
                f"parts; expected at most {MAX_RANKS} ranks, and at least one sample per part",
                field="ranks",
            )
        if self.global_batch_size > MAX_SHOWN:
            raise BadArgumentError(
                f"a page shows batches of at most {MAX_SHOWN} samples", field="batch"
            )

    @property
    def places(self) -> Places:
        """The places of all ranks."""
        return list(mesh_ranks(self.mesh, length=self.length, layout=self.layout))

    @property
    def world_size(self) -> int:
        """The number of ranks that get samples of their own."""
        return math.prod(self.mesh.sizes.get(axis, 1) for axis in DATA_AXES)


def ranks_of(places: Places, part: int) -> str:
    """Return the ranks that get a part, as text such as ``0-3, 8-11``."""
    numbers = enumerate(rank for rank, (at, _) in enumerate(places) if at.data[0] == part)
    runs = [
        [rank for _, rank in run] for _, run in groupby(numbers, lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs)


@dataclass(frozen=True, slots=True, eq=False)
class RankPart:
    """A part of a batch, which one rank gets, or several of a mesh.

    Attributes:
        batch: The part of the batch.
        sample_ids: The ids of its samples, ``(samples,) int64``.
        shards: The number of shards with these samples.
        blocks: The number of blocks with these samples.
    """

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
    """Return the parts of a batch, in order.

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
        parts.append(RankPart(batch, ids, shards.size, np.unique(blocks).size))
    return parts


def plan_of(order: Order, deal: Deal) -> EpochPlan:
    """Return how an epoch is divided into batches."""
    return EpochPlan(order.sample_count, 0, deal.global_batch_size, deal.end)
