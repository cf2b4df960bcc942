"""Orders of the samples that filters keep, as if datasets held nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order.basics.permutation import Walk
from headrace.order.basics.segments import spread, starts_of
from headrace.order.dataset.dataset_order import Order
from headrace.order.filters.subset import Subset
from headrace.order.mixture.mixture import MixtureSpec
from headrace.order.mixture.mixture_order import MixtureOrder
from headrace.order.samples.runs import Locate
from headrace.order.samples.shard_table import ShardTable
from headrace.order.samples.skips import Skips, join_skips
from headrace.order.samples.spec import OrderSpec

_Array = NDArray[np.int64]


_Inner = TypeVar("_Inner", Order, MixtureOrder)


class _OfSubset(ABC, Generic[_Inner]):
    """An order whose ids are those in the whole, of which it has a part.

    Args:
        order: The order of the part, which numbers its samples from 0.
        id_count: Samples of the whole.
    """

    def __init__(self, order: _Inner, id_count: int) -> None:
        self._order: _Inner = order
        self._id_count = id_count
        self.sample_count: Final = order.sample_count
        self.skipped, self.has_skips = order.skipped, order.has_skips

    @abstractmethod
    def _whole(self, numbers: _Array) -> _Array:
        """Return the ids of numbers."""

    @abstractmethod
    def _numbers(self, sample_ids: _Array) -> _Array:
        """Return the numbers of ids; -1 for those that are not kept."""

    def sample_ids(self, epoch: int, start: int, stop: int) -> _Array:
        """Return the sample ids at the positions [start, stop) of an epoch."""
        return self._whole(self._order.sample_ids(epoch, start, stop))

    def find_each(self, epoch: int, sample_ids: _Array) -> list[_Array]:
        """Return all positions of an epoch that hold each of several samples.

        Args:
            epoch: In [0, 2**62).
            sample_ids: (n,) int64, ids in the whole; those that are not kept have no positions.

        Raises:
            BadArgumentError: The epoch is not valid, or there is no such sample.
        """
        outside = sample_ids[(sample_ids < 0) | (sample_ids >= self._id_count)]
        if outside.size:
            raise BadArgumentError(
                f"sample id {int(outside[0])} is not one of the {self._id_count} samples",
                field="sample_ids",
            )
        numbers = self._numbers(sample_ids)
        (places,) = np.nonzero(numbers >= 0)
        found = self._order.find_each(epoch, numbers[places]) if len(places) else []
        positions = [np.empty(0, np.int64)] * len(numbers)
        for place, own in zip(places.tolist(), found, strict=True):
            positions[place] = own
        return positions

    def substitute(self, epoch: int, damaged: Sequence[int]) -> int:
        """Return the kept sample that replaces a damaged one, as `Order` does."""
        numbers = self._numbers(np.array(damaged, np.int64)).tolist()
        return int(self._whole(np.array([self._order.substitute(epoch, numbers)]))[0])

    def blocks_of_runs(self, epoch: int, sample_ids: _Array, locate: Locate) -> _Array:
        """Return the blocks with kept samples that are read with samples, ascending."""
        blocks: _Array = np.unique(locate(self.run_members(epoch, sample_ids))[0])
        return blocks

    def run_members(self, epoch: int, sample_ids: _Array) -> _Array:
        """Return all kept samples of the runs that hold the given samples, rising."""
        starts, ends = self._order.runs_of(epoch, self._numbers(sample_ids))
        firsts, chosen = np.unique(starts, return_index=True)
        owners, offsets = spread(ends[chosen] - firsts)
        return self._whole(firsts[owners] + offsets)


class SubsetOrder(_OfSubset[Order]):
    """The order of the kept samples of a dataset; thread-safe.

    It equals the order of a dataset that holds only these samples, but ids are those in the whole
    dataset.

    Args:
        spec: The options.
        table: `Subset.table` of the dataset's shards.
        kept: Which samples are kept; at least one.
        skips: Samples to leave out, by their ids in the whole dataset.
        walk: See `Order`.

    Raises:
        BadArgumentError: No sample is kept, or all kept samples are skipped.

    Example:
        >>> import numpy as np
        >>> counts = np.array([5, 5])
        >>> kept = Subset(np.packbits([0, 1] * 5, bitorder="little"), 10)
        >>> table = kept.table(ShardTable(counts, counts * 8))
        >>> order = SubsetOrder(OrderSpec(seed=1), table, kept)
        >>> sorted(order.sample_ids(0, 0, 5).tolist())
        [1, 3, 5, 7, 9]
    """

    def __init__(
        self,
        spec: OrderSpec,
        table: ShardTable,
        kept: Subset,
        *,
        skips: Skips | None = None,
        walk: Walk | None = None,
    ) -> None:
        order = Order(spec, table, skips=kept.skips(skips), walk=walk)
        super().__init__(order, kept.sample_count)
        self.spec: Final = spec
        self.table: Final = table
        self.kept: Final = kept
        self.memory_samples: Final = order.memory_samples

    def at(self, epoch: int, positions: _Array) -> _Array:
        """Return the sample ids at positions of an epoch, as `Order` does."""
        return self._whole(self._order.at(epoch, positions))

    def _whole(self, numbers: _Array) -> _Array:
        return self.kept.sample_ids(numbers)

    def _numbers(self, sample_ids: _Array) -> _Array:
        return self.kept.numbers(sample_ids)


class SubsetMixtureOrder(_OfSubset[MixtureOrder]):
    """The order of a mixture in which filters keep a part of some datasets.

    Args:
        spec: The options.
        tables: The shards of each dataset, or their `Subset.table` if it has a filter.
        kept: Which samples of each dataset are kept; None for all.
        skips: Samples to leave out of each dataset, by their ids in it.

    Raises:
        BadArgumentError: `MixtureOrder` refuses the arguments.
    """

    def __init__(
        self,
        spec: MixtureSpec,
        tables: Sequence[ShardTable],
        kept: Sequence[Subset | None],
        *,
        skips: Sequence[Skips | None] | None = None,
    ) -> None:
        self._kept = tuple(kept)
        lists = [
            each if one is None else one.skips(each)
            for each, one in zip(skips or [None] * len(self._kept), self._kept, strict=True)
        ]
        counts = [
            table.sample_count if one is None else one.sample_count
            for table, one in zip(tables, self._kept, strict=True)
        ]
        self.first_ids: Final = starts_of(np.array(counts, np.int64))
        order = MixtureOrder(spec, tables, skips=lists)
        super().__init__(order, sum(counts))
        self.spec: Final = spec
        self.skips: Final = join_skips(skips, self.first_ids)
        self.memory_samples: Final = order.memory_samples
        self.shares: Final = order.shares
        self.check_global_batch_size = order.check_global_batch_size

    def _whole(self, numbers: _Array) -> _Array:
        owners, ids = self._within(self._order.first_ids, numbers, Subset.sample_ids)
        whole: _Array = ids + self.first_ids[owners]
        return whole

    def _numbers(self, sample_ids: _Array) -> _Array:
        owners, numbers = self._within(self.first_ids, sample_ids, Subset.numbers)
        return np.where(numbers >= 0, numbers + self._order.first_ids[owners], -1)

    def _within(
        self, firsts: _Array, items: _Array, translate: Callable[[Subset, _Array], _Array]
    ) -> tuple[_Array, _Array]:
        """Return the dataset of each item, and its place there, translated if it has a filter."""
        owners = np.searchsorted(firsts, items, side="right") - 1
        places = items - firsts[owners]
        for dataset in np.unique(owners).tolist():
            kept = self._kept[dataset]
            if kept is not None:
                own = owners == dataset
                places[own] = translate(kept, places[own])
        return owners, places


AnyOrder: TypeAlias = Order | SubsetOrder | MixtureOrder | SubsetMixtureOrder
"""An order of a dataset or of a mixture, with filters or without."""


def order_of(spec: OrderSpec, table: ShardTable, kept: Subset | None) -> Order | SubsetOrder:
    """Return the order of a dataset, with or without a filter.

    Args:
        spec: The options.
        table: The shard table of the kept samples.
        kept: Which samples are kept; None for all.

    Raises:
        BadArgumentError: The order refuses the arguments.
    """
    return Order(spec, table) if kept is None else SubsetOrder(spec, table, kept)


def mixture_order_of(
    spec: MixtureSpec,
    tables: Sequence[ShardTable],
    kept: Sequence[Subset | None],
    *,
    skips: Sequence[Skips | None] | None = None,
) -> MixtureOrder | SubsetMixtureOrder:
    """Return the order of a mixture, with or without filters.

    Args:
        spec: The mixture.
        tables: The shard table of the kept samples of each dataset.
        kept: Which samples of each dataset are kept; None for all.
        skips: Samples of each dataset to leave out.

    Raises:
        BadArgumentError: The order refuses the arguments.
    """
    if all(each is None for each in kept):
        return MixtureOrder(spec, tables, skips=skips)
    return SubsetMixtureOrder(spec, tables, kept, skips=skips)
