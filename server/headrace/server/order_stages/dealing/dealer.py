"""Deal the samples of global batches to ranks with even costs.

Contract:

1. Each global batch has the same samples as with dealing in order, and every rank gets as many of
   each lane's slice, or as many as its size says; only the assignment differs. The samples of a
   rank keep their order.
2. The assignment depends only on the global batch, its samples' lengths, the ranks and the options:
   not on where a stream started, nor on other streams.
3. A last batch that is padded with repeats is dealt in order.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order import (
    DealSpec,
    EndMode,
    EpochPlan,
    OrderSpec,
    Pieces,
    RankBatch,
    Row,
    check_sizes,
    check_speeds,
    find_rows,
    part_edges_of,
    slices_of,
)
from headrace.server.kernels.loader import LOOPS
from headrace.server.plan.find_samples import BatchPlaces, Finder
from headrace.server.plan.ranks import Ranks

# A dealt batch is kept for the other ranks of its job, which need it at about the same time.
_MAX_KEPT_BYTES = 16 << 20


class Costs(Protocol):
    """Computes the cost of samples."""

    def __call__(self, found: BatchPlaces) -> NDArray[np.float64]:
        """Return the cost of each found sample or row, ``(items,) float64``."""


class Dealer:
    """Deal the global batches of a job, according to the contract above. Safe for several threads.

    Args:
        deal: The options of dealing.
        order: The order of the samples.
        ranks: The ranks to deal to.
        finder: Finds samples.
        costs: Computes their costs.

    Raises:
        BadArgumentError: There are speeds, but not one for each rank, or sizes of other batches.
    """

    def __init__(
        self, deal: DealSpec, order: OrderSpec, ranks: Ranks, *, finder: Finder, costs: Costs
    ) -> None:
        self._deal = deal
        self._order = order
        self._ranks = ranks
        self._finder = finder
        self._costs = costs
        self._pace = check_speeds(deal, ranks.world_size)
        check_sizes(deal, ranks.world_size, ranks.global_batch_size)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int], tuple[NDArray[np.int32], NDArray[np.float64]]]
        self._kept = OrderedDict()

    def find(
        self, epoch: int, batches: Sequence[RankBatch], rank: int
    ) -> tuple[list[BatchPlaces], list[NDArray[np.int64]]]:
        """Return a rank's samples in global batches, and their positions.

        Args:
            epoch: The epoch.
            batches: Its parts of the batches, none of which is padded.
            rank: The rank.
        """
        whole = self._finder.find(
            epoch, [[(batch.position, batch.next_position)] for batch in batches]
        )
        owns = [
            np.flatnonzero(
                self._owners(epoch, batch.position, batch.next_position, each)[0] == rank
            )
            for batch, each in zip(batches, whole, strict=True)
        ]
        positions = [own + batch.position for own, batch in zip(owns, batches, strict=True)]
        return whole[0].together.picked(whole, owns), positions

    def most_rows(self, rank: int, in_order: int) -> int:
        """Return the most samples of a batch for a rank, given how many it gets in order."""
        return self._deal.sizes[rank] if self._deal.sizes else in_order

    def is_dealt(self, batch: RankBatch) -> bool:
        """Return whether a global batch is dealt by cost; else it is dealt in order."""
        is_full = batch.global_sample_count == self._ranks.global_batch_size
        return is_full or self._ranks.end is not EndMode.PAD

    def rows(self, epoch: int, plan: EpochPlan, position: int) -> tuple[Row, ...]:
        """Return the result of `headrace.order.find_rows` for dealt samples."""
        ranks = self._ranks
        index = (position - plan.base) // plan.global_batch_size
        if not 0 <= index < plan.batch_count:
            return ()
        batch = plan.batch(index, rank=0, world_size=ranks.world_size)
        if not self.is_dealt(batch):
            return find_rows(plan, position, world_size=ranks.world_size)
        owners, _ = self._owners(epoch, batch.position, batch.next_position)
        slot = position - batch.position
        rank = int(owners[slot])
        return (Row(index, rank, int(np.count_nonzero(owners[:slot] == rank))),)

    def _owners(
        self, epoch: int, position: int, end: int, whole: BatchPlaces | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the part of each sample of a global batch, and the costs of all parts so far."""
        key = (epoch, position)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        size = self._ranks.global_batch_size
        loads = np.zeros(self._ranks.world_size)
        before = position - size
        if position // size % self._deal.accumulate and before >= 0:
            loads = self._owners(epoch, before, position)[1].copy()
        if whole is None:
            (whole,) = self._finder.find(epoch, [[(position, end)]])
        # Samples that cost nothing are dealt in order.
        costs = np.zeros(end - position) if self._deal.in_order else self._costs(whole)
        edges = slices_of(position, costs.size, lanes=self._order.lanes, unit=self._order.unit)
        part_edges = part_edges_of(self._deal, self._ranks.world_size, costs.size)
        owners = dealt(costs, edges, part_edges, loads, self._pace).astype(np.int32)
        with self._lock:
            self._kept[key] = owners, loads
            size_kept = sum(each.nbytes for each, _ in self._kept.values())
            while size_kept > _MAX_KEPT_BYTES and len(self._kept) > 1:
                _, (gone, _) = self._kept.popitem(last=False)
                size_kept -= gone.nbytes
        return owners, loads


def dealt(
    costs: NDArray[np.float64],
    edges: NDArray[np.int64],
    part_edges: NDArray[np.int64],
    loads: NDArray[np.float64],
    pace: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Compute the same as `headrace.order.deal_evenly`."""
    falling = np.concatenate(
        [
            low + np.argsort(-costs[low:high], kind="stable")
            for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ]
    )
    owners = np.empty(costs.size, np.int64)
    LOOPS.deal_evenly(falling, costs, edges, part_edges, loads, pace, owners)
    return owners


def sample_costs(lengths: NDArray[np.int64], deal: DealSpec) -> NDArray[np.float64]:
    """Return the costs of samples of given lengths: by default their numbers of elements."""
    sizes = lengths.astype(np.float64)
    if not deal.length_cost and not deal.square_cost:
        return sizes
    return deal.length_cost * sizes + deal.square_cost * (sizes * sizes)


def piece_costs(pieces: Pieces, deal: DealSpec) -> NDArray[np.float64]:
    """Return the costs of items that are made of pieces: by default the squares of their sizes."""
    sizes = pieces.table[:, 1].astype(np.float64)
    numbers = np.repeat(np.arange(pieces.counts.size), pieces.counts)
    squares = deal.square_cost if deal.length_cost or deal.square_cost else 1.0
    costs = deal.length_cost * sizes + squares * (sizes * sizes)
    # Without pieces, the sums are integers.
    return np.bincount(numbers, costs, minlength=pieces.counts.size).astype(np.float64)
