"""Find the samples at positions of an order, and their blocks, for several batches.

A step's permutation, and the places of its runs in blocks, are computed once and kept for all
streams of the order. After that a batch only costs its own samples, wherever it starts and however
few of them a rank has.

Contract:

1. The result is that of `PlainFinder`, which is used if the order cannot be read by steps, or if
   its steps are small.
2. Memory is limited: at most `_MAX_STEPS` steps of `_MAX_PIECES` pieces each are kept, and
   `_MAX_BYTES` of all except the newest. The order itself keeps no more for this.
3. Safe for several threads. If two miss the same step, both compute it, and one result is kept.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order import LINE_INVERSES, Order, Pieces
from headrace.server.kernels.loader import LOOPS
from headrace.server.plan.compiled import distinct_each
from headrace.server.plan.damaged import DamagedSamples
from headrace.server.plan.step_tables import StepTables, step_tables
from headrace.server.plan.steps_ahead import Steps
from headrace.storage import OpenDataset

# The steps that eight lanes look ahead (`FORESEEN_WINDOWS`), and those they have passed since.
_MAX_STEPS = 512
# As much as an order keeps when it is asked for samples. A permutation takes 2 MiB at most.
_MAX_BYTES = 32 << 20
# Computing a step takes about 0.8 ms, in which the order finds two thousand samples. A step is
# about a sixteenth of what is shuffled together. It is computed only if it has that many samples,
# or enough bytes that the time does not matter. Otherwise, if each sample of a batch of 64 were in
# another step, the batch would cost as much as two hundred.
LEAST_STEP, _LEAST_STEP_BYTES, _STEPS_SHUFFLED = 2048, 4 << 20, 16
# Lanes that change more often within a unit are read through the order (arbitrary).
_MIN_STRETCH = 64

_NO_IDS = np.empty(0, np.int64)

Range: TypeAlias = tuple[int, int]
"""Positions ``[start, stop)`` of an epoch."""

_Stretch: TypeAlias = tuple[int, int, int]
"""A lane, and places ``[first, end)`` of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Items of an order that are made of pieces of samples, item after item.

    Attributes:
        item_ids: ``(items,) int64``.
        starts: ``(items + 1,) int64``: the first piece of each, and the end of the last one.
        table: ``(pieces, 4) int64``: see `headrace.order.Pieces`.
        shown: ``(pieces,) int64``: the ids of samples that items show; in a mixture, those in its
            datasets.
    """

    item_ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    table: NDArray[np.int64]
    shown: NDArray[np.int64]

    def pieces(self, start: int, end: int) -> Pieces:
        """Return the pieces of items ``[start, end)``, as the items show them."""
        own = slice(self.starts[start], self.starts[end])
        return Pieces(np.diff(self.starts[start : end + 1]), self.shown[own], self.table[own])

    def picked(self, own: NDArray[np.int64], places: NDArray[np.int64]) -> Items:
        """Return some of the items, and their pieces."""
        starts = np.zeros(own.size + 1, np.int64)
        np.cumsum((self.starts[1:] - self.starts[:-1])[own], out=starts[1:])
        return Items(self.item_ids[own], starts, self.table[places], self.shown[places])


@dataclass(frozen=True, slots=True, eq=False)
class SamplePlaces:
    """The samples of several batches found together, one batch after the other.

    Attributes:
        sample_ids: ``(samples,) int64``.
        blocks: ``(samples,) int64``: the block of each.
        offsets: ``(samples,) int64``: the place of each in its block.
        touched: The distinct blocks of each batch, ascending, one batch after the other.
        items: The items of the order that the samples belong to; None if each sample is one.
        alive: What their blocks exist as long as: windows of pieces.
    """

    sample_ids: NDArray[np.int64]
    blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    touched: NDArray[np.int64]
    items: Items | None = None
    alive: object = field(default=None, kw_only=True)

    def picked(
        self, whole: Sequence[BatchPlaces], owns: Sequence[NDArray[np.int64]]
    ) -> list[BatchPlaces]:
        """Return a selection of the items of each of several batches that were found like this.

        Args:
            whole: The batches.
            owns: The items to select in each, ascending.
        """
        own = np.concatenate([found.start + own for found, own in zip(whole, owns, strict=True)])
        items, places = self.items, own
        if items is not None:
            is_own = np.zeros(items.item_ids.size, np.bool_)
            is_own[own] = True
            places = np.flatnonzero(np.repeat(is_own, np.diff(items.starts)))
            items = items.picked(own, places)
        ends = list(accumulate(own.size for own in owns))
        blocks = self.blocks[places]
        place_ends = ends if items is None else items.starts[ends].tolist()
        touched = distinct_each(blocks, place_ends)
        return SamplePlaces(
            self.sample_ids[places],
            blocks,
            self.offsets[places],
            np.concatenate([*touched, blocks[:0]]),
            items,
            alive=self.alive,
        ).cut(ends, accumulate(each.size for each in touched))

    def places_before(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of `sample_ids` belong to the first items of the order."""
        return items if self.items is None else self.items.starts[items]

    def cut(self, ends: Iterable[int], touched_ends: Iterable[int]) -> list[BatchPlaces]:
        """Return each batch.

        Args:
            ends: The end of each batch's items.
            touched_ends: The end of each batch's blocks.
        """
        ends = list(ends)
        edges = itertools.pairwise([0, *ends])
        touched_edges = itertools.pairwise([0, *touched_ends])
        places = ends if self.items is None else self.items.starts[ends].tolist()
        place_edges = itertools.pairwise([0, *places])
        return [
            BatchPlaces(self, *edge, *touched, *own)
            for edge, touched, own in zip(edges, touched_edges, place_edges, strict=True)
        ]


# Made for each batch: a frozen dataclass would take three times as long.
class BatchPlaces(NamedTuple):
    """The samples of one batch, or of several that follow one another.

    Attributes:
        together: All samples that were found together.
        start: The first of its items in them.
        end: The end of its items.
        touched_start: The first of its blocks.
        touched_end: The end of its blocks.
        first: The first of its samples, which are several pieces of an item or the item itself.
        past: The end of its samples.
    """

    together: SamplePlaces
    start: int
    end: int
    touched_start: int
    touched_end: int
    first: int
    past: int

    @property
    def item_ids(self) -> NDArray[np.int64]:
        """Return the items of the order, ``(items,) int64``."""
        items = self.together.items
        found = self.together.sample_ids if items is None else items.item_ids
        return found[self.start : self.end]

    @property
    def pieces(self) -> Pieces | None:
        """Return the pieces that the items show; None if each item is a sample."""
        items = self.together.items
        return None if items is None else items.pieces(self.start, self.end)

    @property
    def sample_ids(self) -> NDArray[np.int64]:
        """Return the samples to read, ``(samples,) int64``."""
        return self.together.sample_ids[self.first : self.past]

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Return the block of each sample."""
        return self.together.blocks[self.first : self.past]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Return the place of each sample in its block."""
        return self.together.offsets[self.first : self.past]

    @property
    def touched(self) -> NDArray[np.int64]:
        """Return the distinct blocks of each batch."""
        return self.together.touched[self.touched_start : self.touched_end]

    def up_to(self, last: BatchPlaces) -> BatchPlaces:
        """Return the samples of this batch and the following ones, up to another."""
        together, start, _, touched_start, _, first, _ = self
        return BatchPlaces(
            together, start, last.end, touched_start, last.touched_end, first, last.past
        )


class Finder(Protocol):
    """Find samples by their positions."""

    @property
    def ordered(self) -> Finder:
        """What finds samples in the order itself; others rearrange or relocate what that finds."""

    @property
    def steps(self) -> Steps | None:
        """The steps of the order, by which to look ahead; None if it has none."""

    @property
    def replacing(self) -> DatasetFinder | None:
        """What finds substitutes for damaged samples; None if none can take their place."""

    @property
    def lane_bytes(self) -> int:
        """Raw bytes of the samples shuffled together in each lane."""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the dataset's version."""

    @property
    def sample_count(self) -> int:
        """Return the number of samples in an epoch."""

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[BatchPlaces]:
        """Return the samples at the positions of each batch, which may be several ranges."""

    @property
    def has_substitutes(self) -> bool:
        """Return whether substitutes may replace skipped samples."""

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return the positions at which a substitute replaces a skipped sample."""

    def positions(self, epoch: int, sample_ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return all positions of given samples in an epoch."""

    def blocks_of_runs(self, epoch: int, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks of the runs that samples are in, ascending: they are read together."""


class OrderFinder:
    """What finders of an order itself have in common."""

    @property
    def ordered(self) -> Self:
        """This finder."""
        return self

    @property
    def steps(self) -> Steps | None:
        """None: the order has no steps by which to look ahead."""
        return None

    @property
    def replacing(self) -> DatasetFinder | None:
        """None: damaged samples are not replaced."""
        return None


class DatasetFinder(Finder, Protocol):
    """Find the samples of one dataset, in which damaged ones are replaced.

    Attributes:
        damaged: The damaged samples.
    """

    damaged: DamagedSamples

    def found(self, sample_ids: NDArray[np.int64]) -> BatchPlaces:
        """Return samples as one batch."""

    def substitute(self, epoch: int, damaged: Sequence[int]) -> int:
        """Return the substitute for the first of damaged samples; the others were tried before."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedStep:
    """A step of the order, and the places of its samples.

    Attributes:
        epoch: Its epoch.
        lane: Its lane.
        start: Its first place in the lane.
        end: The place after its last.
        tables: Its samples, as compiled loops find them.
    """

    epoch: int
    lane: int
    start: int
    end: int
    tables: StepTables

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Return its distinct blocks, ascending."""
        return self.tables.blocks

    @property
    def name(self) -> tuple[int, int, int]:
        """Return the unique key under which it is kept."""
        return self.epoch, self.lane, self.start

    def holds(self, epoch: int, lane: int, place: int) -> bool:
        """Return whether a place of a lane is in this step."""
        return self.start <= place < self.end and self.lane == lane and self.epoch == epoch

    def find(
        self,
        ranges: Sequence[Range],
        found: NDArray[np.int64],
        first: int,
    ) -> list[NDArray[np.int64]]:
        """Find the samples at ranges of places of this step.

        Args:
            ranges: The places, counted from its first.
            found: ``(3, samples) int64``: receives the ids, blocks and places in blocks.
            first: Where in ``found`` the first sample goes.

        Returns:
            The distinct blocks of each range, ascending.
        """
        tables = self.tables
        count = sum([end - start for start, end in ranges])
        touched = np.empty(min(count, len(ranges) * tables.blocks.size), np.int64)
        touched_ends = np.empty(len(ranges), np.int64)
        LOOPS.find_dealt(
            np.array(ranges, np.int64),
            tables.whole,
            tables.tables,
            tables.width,
            tables.entries,
            tables.key,
            tables.second_key,
            LINE_INVERSES,
            tables.pieces,
            tables.buckets,
            tables.shift,
            tables.blocks,
            found,
            first,
            touched,
            touched_ends,
        )
        edges = itertools.pairwise([0, *touched_ends.tolist()])
        return [touched[start:end] for start, end in edges]


_Part: TypeAlias = "tuple[int, PlacedStep, int, int]"
"""The number of a batch, a step, and its places ``[start, end)`` for it."""


class StepFinder(OrderFinder):
    """Find samples by their positions, according to the contract above.

    Args:
        order: The order.
        dataset: The dataset.
        plain: Finds the same samples without steps.
        least_step: The minimum number of samples of a step to compute, if samples are small.
    """

    def __init__(
        self, order: Order, dataset: OpenDataset, plain: DatasetFinder, *, least_step: int
    ) -> None:
        self._order = order
        self._dataset = dataset
        self._plain = plain
        self.fingerprint = plain.fingerprint
        self.sample_count = plain.sample_count
        self.lane_bytes = plain.lane_bytes
        self.skipped, self.has_substitutes = plain.skipped, plain.has_substitutes
        self.positions = plain.positions
        self.substitute = plain.substitute
        self.damaged, self.found = plain.damaged, plain.found
        self.blocks_of_runs = plain.blocks_of_runs
        self.sample_bytes = max(1, dataset.raw_bytes // max(1, dataset.sample_count))
        step_samples = order.memory_samples // _STEPS_SHUFFLED
        is_large = (
            step_samples >= least_step or step_samples * self.sample_bytes >= _LEAST_STEP_BYTES
        )
        # If a whole lane is shuffled together, only a ramp has steps to look ahead to.
        is_whole = order.memory_samples >= order.lane_length(0)
        self.has_steps = is_large and (not is_whole or order.spec.ramp)
        self.block_samples = dataset.sample_count / max(1, dataset.block_count)
        self.lane_place = order.lane_place
        self.lane_length = order.lane_length
        spec = order.spec
        has_long_stretches = spec.lanes == 1 or spec.unit // spec.lanes >= _MIN_STRETCH
        self._is_by_step = has_long_stretches and (is_large or is_whole)
        self._lock = threading.Lock()
        # In order of their last use, and their names in rising order.
        self._steps: OrderedDict[tuple[int, int, int], PlacedStep] = OrderedDict()
        self._names: list[tuple[int, int, int]] = []
        self._kept_bytes = 0
        self._last: PlacedStep | None = None

    @property
    def steps(self) -> Steps | None:
        """Its own steps, if they are large enough to look ahead to."""
        return self if self.has_steps else None

    @property
    def replacing(self) -> DatasetFinder:
        """This finder."""
        return self

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[BatchPlaces]:
        """Return the samples at the positions of each batch, which may be several ranges."""
        if not self._is_by_step:
            return self._plain.find(epoch, batches)
        parts: list[_Part] = []
        ends, end = [], 0
        step = None
        for batch, own in enumerate(batches):
            for lane, first, stop in self._stretches(own):
                place, end = first, end + stop - first
                while place < stop:
                    # Without a call for each batch.
                    if step is None or lane != step.lane or not step.start <= place < step.end:
                        step = self._step(epoch, lane, place)
                    if step is None:
                        return self._plain.find(epoch, batches)
                    past = min(stop, step.end)
                    parts.append((batch, step, place - step.start, past - step.start))
                    place = past
            ends.append(end)
        return self._found(parts, ends)

    def step_blocks(self, epoch: int, lane: int, place: int) -> PlacedStep | None:
        """Return the step with a place of a lane; None if steps are not available now."""
        if not self._is_by_step:
            return None
        return self._kept_step(epoch, lane, place)

    def whole_runs(self, epoch: int, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks that an epoch reads with those given, ascending."""
        return self.blocks_of_runs(epoch, self._dataset.block_first_samples(blocks))

    def _stretches(self, batch: Sequence[Range]) -> list[_Stretch]:
        cut = self._order.stretches
        return [part for start, stop in batch for part in cut(start, stop)]

    def _found(self, parts: Sequence[_Part], ends: Sequence[int]) -> list[BatchPlaces]:
        """Find the samples of batches by their parts, with one call for those of a step."""
        sample_ids, blocks, offsets = found = np.empty((3, ends[-1] if ends else 0), np.int64)
        touched: list[NDArray[np.int64]] = []
        at = 0
        for step, alike in itertools.groupby(parts, key=itemgetter(1)):
            own = [(start, end) for _, _, start, end in alike]
            touched += step.find(own, found, at)
            at += sum([end - start for start, end in own])
        batches = [batch for batch, *_ in parts]
        if batches != list(range(len(ends))):
            # Some batches lie in several steps, or are empty.
            each, touched = touched, [_NO_IDS] * len(ends)
            for batch, some in itertools.groupby(zip(batches, each, strict=True), itemgetter(0)):
                touched[batch] = np.unique(np.concatenate([blocks for _, blocks in some]))
        together = SamplePlaces(sample_ids, blocks, offsets, np.concatenate([_NO_IDS, *touched]))
        return together.cut(ends, accumulate([blocks.size for blocks in touched]))

    def _step(self, epoch: int, lane: int, place: int) -> PlacedStep | None:
        step = self._last
        if step is None or not step.holds(epoch, lane, place):
            step = self._last = self._kept_step(epoch, lane, place)
        return step

    def _kept_step(self, epoch: int, lane: int, place: int) -> PlacedStep | None:
        with self._lock:
            at = bisect.bisect_right(self._names, (epoch, lane, place)) - 1
            step = self._steps[self._names[at]] if at >= 0 else None
            if step is not None and step.holds(epoch, lane, place):
                self._steps.move_to_end(step.name)
                return step
        placed = self._placed(epoch, lane, place)
        if placed is None:
            # This follows from the order's options, or is rare: then everything is found without
            # steps.
            self._is_by_step = False
            return None
        with self._lock:
            self._keep(placed)
        return placed

    def _keep(self, placed: PlacedStep) -> None:
        if (twin := self._steps.pop(placed.name, None)) is not None:
            self._kept_bytes -= twin.tables.nbytes
        else:
            bisect.insort(self._names, placed.name)
        self._steps[placed.name] = placed
        self._kept_bytes += placed.tables.nbytes
        while len(self._steps) > 1 and (
            len(self._steps) > _MAX_STEPS or self._kept_bytes > _MAX_BYTES
        ):
            name, step = self._steps.popitem(last=False)
            self._names.remove(name)
            self._kept_bytes -= step.tables.nbytes

    def _placed(self, epoch: int, lane: int, place: int) -> PlacedStep | None:
        step = self._order.step(epoch, lane, place)
        tables = None if step is None else step_tables(step, self._dataset)
        if step is None or tables is None:
            return None
        return PlacedStep(epoch, lane, step.start, step.start + step.count, tables)
