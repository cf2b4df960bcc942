"""Find the samples at positions of an order, and their blocks, for several batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order import OrderSpec, ShardTable, walk_tables
from headrace.order.packing import Fitted, PackedGroup, Pieces, best_fit, take_pieces
from headrace.server.kernels.loader import LOOPS
from headrace.server.plan.damaged import DamagedSamples
from headrace.storage import Dataset, Starts, search_starts

# Blocks within this many times the samples are counted, not sorted (6 us and 50 us for 4,096).
_CLOSE = 8

Range: TypeAlias = tuple[int, int]
"""Positions ``[start, stop)`` of an epoch."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundTogether:
    """The samples of several batches found together, one batch after the other.

    Attributes:
        sample_ids: ``(samples,) int64``.
        blocks: ``(samples,) int64``: the block of each.
        offsets: ``(samples,) int64``: the place of each in its block.
        touched: The distinct blocks of each batch, ascending, one batch after the other.
    """

    sample_ids: NDArray[np.int64]
    blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    touched: NDArray[np.int64]

    def cut(self, ends: Iterable[int], touched_ends: Iterable[int]) -> list[Found]:
        """Return each batch.

        Args:
            ends: The end of each batch's samples.
            touched_ends: The end of each batch's blocks.
        """
        edges = itertools.pairwise([0, *ends])
        touched_edges = itertools.pairwise([0, *touched_ends])
        return [
            Found(self, *edge, *touched) for edge, touched in zip(edges, touched_edges, strict=True)
        ]


# Made for each batch: a frozen dataclass would take three times as long.
class Found(NamedTuple):
    """The samples of one batch, or of several that follow one another.

    Attributes:
        together: All samples that were found together.
        begin: The first of its samples in them.
        end: The end of its samples.
        touched_begin: The first of its blocks.
        touched_end: The end of its blocks.
    """

    together: FoundTogether
    begin: int
    end: int
    touched_begin: int
    touched_end: int

    @property
    def item_ids(self) -> NDArray[np.int64]:
        """Return the items of the order, here samples, ``(samples,) int64``."""
        return self.together.sample_ids[self.begin : self.end]

    @property
    def sample_ids(self) -> NDArray[np.int64]:
        """Return the samples to read, ``(samples,) int64``."""
        return self.together.sample_ids[self.begin : self.end]

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Return the block of each sample."""
        return self.together.blocks[self.begin : self.end]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Return the place of each sample in its block."""
        return self.together.offsets[self.begin : self.end]

    @property
    def touched(self) -> NDArray[np.int64]:
        """Return the distinct blocks of each batch."""
        return self.together.touched[self.touched_begin : self.touched_end]

    def up_to(self, last: Found) -> Found:
        """Return the samples of this batch and the following ones, up to another."""
        return Found(self.together, self.begin, last.end, self.touched_begin, last.touched_end)


class SampleOrder(Protocol):
    """The parts of an order that a finder needs."""

    @property
    def sample_count(self) -> int:
        """Return the number of samples in an epoch."""

    def sample_ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at the positions ``[start, stop)`` of an epoch."""

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return the positions at which a substitute replaces a skipped sample."""

    def substitute(self, epoch: int, damaged: Sequence[int]) -> int:
        """Return the substitute for the first of damaged samples; the others were tried before."""

    def find_each(self, epoch: int, sample_ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return all positions of given samples in an epoch."""

    def runs_of(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first sample of each one's run, and the one after its last."""


class Locator(Protocol):
    """The parts of a dataset that a finder needs."""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the dataset's version."""

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of each sample and its place in that block."""


class Finder(Protocol):
    """Find samples by their positions."""

    @property
    def lane_bytes(self) -> int:
        """Raw bytes of the samples shuffled together in each lane."""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the dataset's version."""

    @property
    def sample_count(self) -> int:
        """Return the number of samples in an epoch."""

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[Found]:
        """Return the samples at the positions of each batch, which may be several ranges."""

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return the positions at which a substitute replaces a skipped sample."""

    def positions(self, epoch: int, sample_ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return all positions of given samples in an epoch."""

    def blocks_of_runs(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks of the runs that samples are in, ascending: they are read together."""


class PlainFinder:
    """Find samples with the order, and their blocks with the dataset.

    Args:
        order: The order.
        locator: The dataset.
        lane_bytes: Raw bytes of the samples shuffled together in each lane.
    """

    def __init__(self, order: SampleOrder, locator: Locator, *, lane_bytes: int = 0) -> None:
        self._order = order
        self._locator = locator
        self.fingerprint = locator.fingerprint
        self.lane_bytes = lane_bytes
        self.sample_count = order.sample_count
        self.skipped = order.skipped
        self.positions = order.find_each
        self.substitute = order.substitute
        self.damaged = DamagedSamples()

    def found(self, sample_ids: NDArray[np.int64]) -> Found:
        """Return samples as one batch."""
        (found,) = located(sample_ids, [sample_ids.size], self._locator)
        return found

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[Found]:
        """Return the samples at the positions of each batch, which may be several ranges."""
        ranges = joined(itertools.chain.from_iterable(batches))
        sample_ids = np.concatenate(
            [np.empty(0, np.int64), *(self._order.sample_ids(epoch, *each) for each in ranges)]
        )
        counts = [sum(stop - start for start, stop in batch) for batch in batches]
        return located(sample_ids, counts, self._locator)

    def blocks_of_runs(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks of the runs that samples are in, ascending: they are read together."""
        first_ids, ends = self._order.runs_of(sample_ids)
        firsts, chosen = np.unique(first_ids, return_index=True)
        begins, _ = self._locator.locate(firsts)
        lasts, _ = self._locator.locate(ends[chosen] - 1)
        counts = lasts - begins + 1
        starts = np.cumsum(counts) - counts
        return np.unique(np.repeat(begins - starts, counts) + np.arange(counts.sum()))


class KeptOrders(SampleOrder, Protocol):
    """The parts of an order of filtered samples that a finder needs."""

    def run_members(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all kept samples of the runs of given samples, ascending."""


class KeptFinder(PlainFinder):
    """A `PlainFinder` of samples that filters keep, which skips blocks without any."""

    def __init__(self, order: KeptOrders, locator: Locator, *, lane_bytes: int) -> None:
        super().__init__(order, locator, lane_bytes=lane_bytes)
        self._members = order.run_members

    def blocks_of_runs(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the blocks with kept samples of the runs of given samples, ascending."""
        blocks, _ = self._locator.locate(self._members(sample_ids))
        return np.unique(blocks)


def lane_bytes(spec: OrderSpec, memory_samples: int, sample_count: int, raw_bytes: int) -> int:
    """Return the raw bytes of a dataset's samples that are shuffled together in a lane.

    Args:
        spec: How the dataset is shuffled.
        memory_samples: The number of samples shuffled together.
        sample_count: Samples of the dataset.
        raw_bytes: The raw bytes of these samples.
    """
    if not spec.shuffle or not sample_count:
        return 0
    return min(memory_samples, -(-sample_count // spec.lanes)) * raw_bytes // sample_count


def table_bytes(spec: OrderSpec, table: ShardTable, memory_samples: int) -> int:
    """Return `lane_bytes` for the samples of a table."""
    return lane_bytes(spec, memory_samples, table.sample_count, int(table.raw_bytes.sum()))


def located(sample_ids: NDArray[np.int64], counts: Sequence[int], locator: Locator) -> list[Found]:
    """Find the blocks of samples.

    Args:
        sample_ids: The sample ids of all batches, one after the other.
        counts: The number of samples of each batch.
        locator: The dataset.
    """
    blocks, offsets = locator.locate(sample_ids)
    ends = list(itertools.accumulate(counts))
    touched = distinct_each(blocks, ends, kernels=LOOPS)
    touched_ends = itertools.accumulate(own.size for own in touched)
    # There may be no samples at all.
    together = FoundTogether(sample_ids, blocks, offsets, np.concatenate([*touched, blocks[:0]]))
    return together.cut(ends, touched_ends)


def distinct_each(
    blocks: NDArray[np.int64], ends: Sequence[int], *, kernels: ModuleType | None
) -> list[NDArray[np.int64]]:
    """Return the distinct blocks of each batch, ascending.

    Args:
        blocks: ``(samples,) int64``: of all batches, one after the other.
        ends: The end of each batch.
        kernels: The compiled functions, or None.
    """
    if kernels is not None:
        found, found_ends = np.empty_like(blocks), np.empty(len(ends), np.int64)
        most = _CLOSE * blocks.size
        if kernels.distinct(blocks, np.array(ends, np.int64), most, found, found_ends):
            edges = [0, *found_ends.tolist()]
            return [found[begin:end] for begin, end in itertools.pairwise(edges)]
    return [_distinct(blocks[begin:end]) for begin, end in itertools.pairwise([0, *ends])]


def joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Join adjacent ranges, such as those of successive batches in a world of one rank."""
    last: Range | None = None
    for start, stop in ranges:
        if last is not None and last[1] == start:
            last = (last[0], stop)
            continue
        if last is not None:
            yield last
        last = (start, stop)
    if last is not None:
        yield last


def _distinct(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct blocks, ascending, without sorting if they are close together."""
    if not blocks.size:
        return blocks
    first = int(blocks.min())
    if int(blocks.max()) - first > _CLOSE * blocks.size:
        return np.unique(blocks)
    return np.flatnonzero(np.bincount(blocks - first)) + first


# If more spans start in a bucket, a scan takes longer than a binary search.
_MAX_STEPS = 16


def walk(
    tables: NDArray[np.uint16], width: int, count: int, places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Compute the same as `headrace.order.walk_tables`."""
    if LOOPS is None:
        return walk_tables(tables, width, count, places)
    out = np.empty(places.size, np.int64)
    LOOPS.walk(tables, width, count, places, out)
    return out


def fit(
    documents: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    limits: tuple[int, int, int],
) -> Fitted | None:
    """Compute the same as `headrace.order.packing.best_fit`."""
    if LOOPS is None:
        return best_fit(documents, starts, sizes, limits)
    out = np.empty((documents.size + limits[2], 4), np.int64)
    count, rows = LOOPS.best_fit(documents, starts, sizes, *limits, out)
    return None if count < 0 else Fitted(out[:count], rows)


def take(
    groups: Sequence[PackedGroup],
    which: NDArray[np.int64],
    rows: NDArray[np.int64],
    firsts: NDArray[np.int64],
) -> Pieces:
    """Compute the same as `headrace.order.packing.take_pieces`."""
    if LOOPS is None:
        return take_pieces(groups, which, rows, firsts)
    tables = np.array([each.memory for each in groups], np.int64).reshape(-1, 4)
    given = (tables, which, rows)
    counts = np.empty(rows.size, np.int64)
    count = LOOPS.count_pieces(*given, counts)
    sample_ids, table = np.empty(count, np.int64), np.empty((count, 4), np.int64)
    LOOPS.take_pieces(*given, firsts, sample_ids, table)
    return Pieces(counts, sample_ids, table)


def search(
    starts: Starts, ordinals: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compute the same as `headrace.storage.search_starts`."""
    if LOOPS is None or starts.buckets.dtype != np.uint16 or starts.steps > _MAX_STEPS:
        return search_starts(starts, ordinals)
    spans, offsets = np.empty(ordinals.size, np.int64), np.empty(ordinals.size, np.int64)
    LOOPS.find_spans(
        starts.values,
        starts.buckets,
        starts.shift,
        np.ascontiguousarray(ordinals),
        spans,
        offsets,
    )
    return spans, offsets


class Located:
    """Find samples as their dataset does, but faster if its search can be replaced.

    Args:
        dataset: Where they lie.
    """

    def __init__(self, dataset: Locator) -> None:
        self._dataset = dataset
        self.fingerprint = dataset.fingerprint

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of each sample and its place in that block."""
        if isinstance(self._dataset, Dataset):
            return self._dataset.locate(sample_ids, search=search)
        return self._dataset.locate(sample_ids)
