"""Find samples with an order and their blocks with a dataset, whatever both of them are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order import Locate, Order, OrderSpec, ShardTable
from headrace.server.plan.compiled import Locator, distinct_each, search
from headrace.server.plan.damaged import DamagedSamples
from headrace.server.plan.find_samples import (
    LEAST_STEP,
    BatchPlaces,
    DatasetFinder,
    OrderFinder,
    Range,
    SamplePlaces,
    StepFinder,
)
from headrace.storage import OpenDataset


class SampleOrder(Protocol):
    """The parts of an order that a finder needs."""

    @property
    def sample_count(self) -> int:
        """Return the number of samples in an epoch."""

    def sample_ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at the positions ``[start, stop)`` of an epoch."""

    @property
    def has_skips(self) -> bool:
        """Return whether samples are skipped."""

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return the positions at which a substitute replaces a skipped sample."""

    def substitute(self, epoch: int, damaged: Sequence[int]) -> int:
        """Return the substitute for the first of damaged samples; the others were tried before."""

    def find_each(self, epoch: int, sample_ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return all positions of given samples in an epoch."""

    def blocks_of_runs(
        self, epoch: int, sample_ids: NDArray[np.int64], locate: Locate
    ) -> NDArray[np.int64]:
        """Return all blocks that are read with samples, ascending."""


class PlainFinder(OrderFinder):
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
        self.skipped, self.has_substitutes = order.skipped, order.has_skips
        self.positions = order.find_each
        self.substitute = order.substitute
        self.damaged = DamagedSamples()

    @property
    def replacing(self) -> DatasetFinder:
        """This finder."""
        return self

    def found(self, sample_ids: NDArray[np.int64]) -> BatchPlaces:
        """Return samples as one batch."""
        (found,) = located(sample_ids, [sample_ids.size], self._locator)
        return found

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[BatchPlaces]:
        """Return the samples at the positions of each batch, which may be several ranges."""
        ranges = joined(itertools.chain.from_iterable(batches))
        sample_ids = np.concatenate(
            [np.empty(0, np.int64), *(self._order.sample_ids(epoch, *each) for each in ranges)]
        )
        counts = [sum(stop - start for start, stop in batch) for batch in batches]
        return located(sample_ids, counts, self._locator)

    def blocks_of_runs(self, epoch: int, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks of the runs that samples are in, ascending: they are read together."""
        locate = partial(self._locator.locate, search=search)
        return self._order.blocks_of_runs(epoch, sample_ids, locate)


def step_finder(order: Order, dataset: OpenDataset, *, least_step: int = LEAST_STEP) -> StepFinder:
    """Return a finder of the samples of a dataset, step by step where that is possible."""
    kept_bytes = lane_bytes(order.spec, order.memory_samples, order.sample_count, dataset.raw_bytes)
    plain = PlainFinder(order, dataset, lane_bytes=kept_bytes)
    return StepFinder(order, dataset, plain, least_step=least_step)


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


def located(
    sample_ids: NDArray[np.int64], counts: Sequence[int], locator: Locator
) -> list[BatchPlaces]:
    """Find the blocks of samples.

    Args:
        sample_ids: The sample ids of all batches, one after the other.
        counts: The number of samples of each batch.
        locator: The dataset.
    """
    blocks, offsets = locator.locate(sample_ids, search=search)
    ends = list(itertools.accumulate(counts))
    touched = distinct_each(blocks, ends)
    touched_ends = itertools.accumulate(own.size for own in touched)
    # There may be no samples at all.
    together = SamplePlaces(sample_ids, blocks, offsets, np.concatenate([*touched, blocks[:0]]))
    return together.cut(ends, touched_ends)


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
