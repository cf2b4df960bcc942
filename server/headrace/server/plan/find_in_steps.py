"""Find samples step by step, with compiled loops: from positions to blocks in one call.

A step's permutation, and the places of its runs in blocks, are computed once and kept for all
streams of the order. After that a batch only costs its own samples, wherever it starts and however
few of them a rank has.

Contract:

1. The result is that of `PlainFinder`, which is used if there are no kernels, if the order cannot
   be read by steps, or if its steps are small.
2. Memory is limited: at most `_MAX_STEPS` steps of `_MAX_PIECES` pieces each are kept, and
   `_MAX_BYTES` of all except the newest. The order itself keeps no more for this.
3. Safe for several threads. If two miss the same step, both compute it, and one result is kept.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from types import ModuleType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order import LINE_INVERSES, NETWORK_ROUNDS, Order, Step, network_sides
from headrace.server.kernels.loader import LOOPS
from headrace.server.plan.find_samples import (
    Found,
    FoundTogether,
    Located,
    PlainFinder,
    Range,
    lane_bytes,
)
from headrace.storage import OpenDataset

# The steps that eight lanes look ahead (`FORESEEN_WINDOWS`), and those they have passed since.
_MAX_STEPS = 512
# As much as an order keeps when it is asked for samples. A permutation takes 2 MiB at most.
_MAX_BYTES = 32 << 20
# Of 32 bytes each. A step touches some thousands of blocks by default.
_MAX_PIECES = 1 << 18
# Computing a step takes about 0.8 ms, in which the order finds two thousand samples. A step is
# about a sixteenth of what is shuffled together. It is computed only if it has that many samples,
# or enough bytes that the time does not matter. Otherwise, if each sample of a batch of 64 were in
# another step, the batch would cost as much as two hundred.
_LEAST_STEP, _LEAST_STEP_BYTES, _STEPS_SHUFFLED = 2048, 4 << 20, 16
# Lanes that change more often within a unit are read through the order (arbitrary).
_MIN_STRETCH = 64

# The kernel scans from a bucket's first piece to the one that holds a sample. Few buckets contain a
# border, because there are many (a mispredicted branch costs more than anything else here).
_BUCKETS = 1 << 13
_BUCKETS_A_PIECE = 4

_NO_TABLES = np.empty((0, 0), np.uint16)
_NO_IDS = np.empty(0, np.int64)

_Stretch: TypeAlias = tuple[int, int, int]
"""A lane, and places ``[first, end)`` of it."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedStep:
    """A step of the order, and the places of its samples.

    Attributes:
        epoch: Its epoch.
        lane: Its lane.
        start: Its first place in the lane.
        end: The place after its last.
        whole: An argument of the kernel `find_dealt`, as are the next eight.
        tables: See `whole`.
        width: See `whole`.
        entries: See `whole`.
        key: See `whole`.
        second_key: See `whole`.
        pieces: See `whole`.
        buckets: See `whole`.
        shift: See `whole`.
        blocks: The blocks that `pieces` refers to, in the kernel's form.
    """

    epoch: int
    lane: int
    start: int
    end: int
    whole: NDArray[np.int64]
    tables: NDArray[np.uint16]
    width: int
    entries: NDArray[np.int64]
    key: np.uint64
    second_key: np.uint64
    pieces: NDArray[np.int64]
    buckets: NDArray[np.int32]
    shift: int
    blocks: NDArray[np.int64]

    @property
    def name(self) -> tuple[int, int, int]:
        """Return the unique key under which it is kept."""
        return self.epoch, self.lane, self.start

    @property
    def nbytes(self) -> int:
        """Return the size of the arrays in bytes."""
        arrays = (self.whole, self.tables, self.pieces, self.buckets, self.blocks)
        return sum(array.nbytes for array in arrays)

    def holds(self, epoch: int, lane: int, place: int) -> bool:
        """Return whether a place of a lane is in this step."""
        return self.start <= place < self.end and self.lane == lane and self.epoch == epoch

    def holds_batch(self, stretches: Sequence[_Stretch]) -> bool:
        """Return whether a batch of its epoch is a single stretch in this step."""
        if len(stretches) != 1:
            return False
        ((lane, first, end),) = stretches
        return self.start <= first and end <= self.end and lane == self.lane

    def find(self, stretches: Sequence[_Stretch], kernels: ModuleType) -> list[Found]:
        """Return the samples of stretches of this step, each a batch."""
        start = self.start
        places = [(first - start, end - start) for _, first, end in stretches]
        count = sum(end - first for first, end in places)
        found = np.empty((3, count), np.int64)
        touched = np.empty(min(count, len(places) * self.blocks.size), np.int64)
        touched_ends = np.empty(len(places), np.int64)
        kernels.find_dealt(
            np.array(places, np.int64),
            self.whole,
            self.tables,
            self.width,
            self.entries,
            self.key,
            self.second_key,
            LINE_INVERSES,
            self.pieces,
            self.buckets,
            self.shift,
            self.blocks,
            found,
            touched,
            touched_ends,
        )
        ends = accumulate(end - first for first, end in places)
        sample_ids, blocks, offsets = found
        together = FoundTogether(sample_ids, blocks, offsets, touched)
        return together.cut(ends, touched_ends.tolist())


class StepFinder:
    """Find samples by their positions, according to the contract above.

    Args:
        order: The order.
        dataset: The dataset.
        least_step: The minimum number of samples of a step to compute, if samples are small.
    """

    def __init__(
        self, order: Order, dataset: OpenDataset, *, least_step: int = _LEAST_STEP
    ) -> None:
        self._order = order
        self._dataset = dataset
        self._plain = PlainFinder(order, Located(dataset))
        self.fingerprint = dataset.fingerprint
        self.sample_count = order.sample_count
        self.lane_bytes = lane_bytes(
            order.spec, order.memory_samples, order.sample_count, dataset.raw_bytes
        )
        self.skipped = order.skipped
        self.positions = order.find_each
        self.substitute = order.substitute
        self.damaged, self.found = self._plain.damaged, self._plain.found
        self.blocks_of_runs = self._plain.blocks_of_runs
        self.sample_bytes = max(1, dataset.raw_bytes // max(1, dataset.sample_count))
        step_samples = order.memory_samples // _STEPS_SHUFFLED
        is_large = (
            step_samples >= least_step or step_samples * self.sample_bytes >= _LEAST_STEP_BYTES
        )
        # If a whole lane is shuffled together, it is a single step, and there is nothing ahead.
        is_whole = order.memory_samples >= order.lane_length(0)
        self.has_steps = is_large and not is_whole
        self.lane_place = order.lane_place
        self.lane_length = order.lane_length
        spec = order.spec
        has_long_stretches = spec.lanes == 1 or spec.unit // spec.lanes >= _MIN_STRETCH
        self._is_by_step = has_long_stretches and (is_large or is_whole)
        self._lock = threading.Lock()
        self._steps: OrderedDict[tuple[int, int, int], PlacedStep] = OrderedDict()
        self._kept_bytes = 0
        self._last: PlacedStep | None = None

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[Found]:
        """Return the samples at the positions of each batch, which may be several ranges."""
        kernels = LOOPS
        if kernels is None or not self._is_by_step:
            return self._plain.find(epoch, batches)
        stretches = [self._stretches(batch) for batch in batches]
        found: list[Found] = []
        while (at := len(found)) < len(batches):
            if not stretches[at]:
                found += FoundTogether(_NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS).cut([0], [0])
                continue
            lane, first, _ = stretches[at][0]
            step = self._step(epoch, lane, first, kernels)
            if step is None:
                return found + self._plain.find(epoch, batches[at:])
            run = list(takewhile(step.holds_batch, stretches[at:]))
            if run:
                found += step.find([stretch for (stretch,) in run], kernels)
            else:
                found += self._across(epoch, batches[at], stretches[at], kernels)
        return found

    def step_blocks(self, epoch: int, lane: int, place: int) -> PlacedStep | None:
        """Return the step with a place of a lane; None if steps are not available now."""
        kernels = LOOPS
        if kernels is None or not self._is_by_step:
            return None
        return self._kept_step(epoch, lane, place, kernels)

    def whole_runs(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks of the runs in which blocks start, ascending."""
        return self.blocks_of_runs(self._dataset.block_first_samples(blocks))

    def _stretches(self, batch: Sequence[Range]) -> list[_Stretch]:
        cut = self._order.stretches
        return [part for start, stop in batch for part in cut(start, stop)]

    def _across(
        self,
        epoch: int,
        batch: Sequence[Range],
        stretches: Sequence[_Stretch],
        kernels: ModuleType,
    ) -> list[Found]:
        """Return the samples of a batch in several steps or several lanes."""
        parts: list[Found] = []
        for lane, first, end in stretches:
            place = first
            while place < end:
                step = self._step(epoch, lane, place, kernels)
                if step is None:
                    return self._plain.find(epoch, [batch])
                stop = min(end, step.end)
                parts += step.find([(lane, place, stop)], kernels)
                place = stop
        joined = FoundTogether(
            np.concatenate([part.sample_ids for part in parts]),
            np.concatenate([part.blocks for part in parts]),
            np.concatenate([part.offsets for part in parts]),
            np.unique(np.concatenate([part.touched for part in parts])),
        )
        return joined.cut([joined.sample_ids.size], [joined.touched.size])

    def _step(self, epoch: int, lane: int, place: int, kernels: ModuleType) -> PlacedStep | None:
        step = self._last
        if step is None or not step.holds(epoch, lane, place):
            step = self._last = self._kept_step(epoch, lane, place, kernels)
        return step

    def _kept_step(
        self, epoch: int, lane: int, place: int, kernels: ModuleType
    ) -> PlacedStep | None:
        with self._lock:
            # In order of their last use.
            for step in reversed(self._steps.values()):
                if step.holds(epoch, lane, place):
                    self._steps.move_to_end(step.name)
                    return step
        placed = self._placed(epoch, lane, place, kernels)
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
            self._kept_bytes -= twin.nbytes
        self._steps[placed.name] = placed
        self._kept_bytes += placed.nbytes
        while len(self._steps) > 1 and (
            len(self._steps) > _MAX_STEPS or self._kept_bytes > _MAX_BYTES
        ):
            _, step = self._steps.popitem(last=False)
            self._kept_bytes -= step.nbytes

    def _placed(self, epoch: int, lane: int, place: int, kernels: ModuleType) -> PlacedStep | None:
        step = self._order.step(epoch, lane, place)
        if step is None:
            return None
        pieces = _pieces(step, self._dataset)
        if pieces is None:
            return None
        table, blocks = pieces
        buckets, shift = _buckets(table[:, 0])
        whole, tables, width = _permutation(step, kernels)
        entries = step.entries.copy()
        entries[:-1, 1] -= step.low
        return PlacedStep(
            epoch=epoch,
            lane=lane,
            start=step.start,
            end=step.start + step.count,
            whole=whole,
            tables=tables,
            width=width,
            entries=entries,
            key=np.uint64((step.deal_key + step.low) % (1 << 64)),
            second_key=np.uint64(step.deal_second_key),
            pieces=table,
            buckets=buckets,
            shift=shift,
            blocks=blocks,
        )


def _permutation(
    step: Step, kernels: ModuleType
) -> tuple[NDArray[np.int64], NDArray[np.uint16], int]:
    """Return the permutation of a step, as the kernel `find_dealt` takes it."""
    keys = np.uint64(step.key), np.uint64(step.second_key)
    if step.is_small:
        words = np.empty(step.count, np.uint64)
        number_bits = (step.count - 1).bit_length()
        kernels.sorting_words(*keys, number_bits, words)
        words.sort()
        words &= np.uint64((1 << number_bits) - 1)
        return words.view(np.int64), _NO_TABLES, 1
    width, height = network_sides(step.count)
    tables = np.zeros((NETWORK_ROUNDS, max(width, height)), np.uint16)
    kernels.network_tables(*keys, width, height, tables)
    return _NO_IDS, tables, width


def _pieces(step: Step, dataset: OpenDataset) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Cut the runs of a step where blocks end; None if that makes too many.

    Returns:
        The pieces and the distinct blocks, as the kernel `find_dealt` takes them.
    """
    located = Located(dataset)
    first_blocks, _ = located.locate(step.first_ids)
    last_blocks, _ = located.locate(step.first_ids + step.lengths - 1)
    counts = last_blocks - first_blocks + 1
    count = int(counts.sum())
    if count > _MAX_PIECES:
        return None
    runs = np.repeat(np.arange(counts.size), counts)
    first_pieces, run_starts = np.cumsum(counts) - counts, np.cumsum(step.lengths)
    run_starts -= step.lengths
    blocks = first_blocks[runs] + np.arange(count) - first_pieces[runs]
    block_ids = dataset.block_first_samples(blocks)
    first_ids = np.maximum(block_ids, step.first_ids[runs])
    distinct, own = np.unique(blocks, return_inverse=True)
    pieces = np.zeros((count + 1, 4), np.int64)
    pieces[:-1, 0] = run_starts[runs] + first_ids - step.first_ids[runs]
    pieces[:-1, 1] = first_ids
    pieces[:-1, 2] = first_ids - block_ids
    pieces[:-1, 3] = own
    pieces[-1, 0] = step.high - step.low
    return pieces, distinct


def _buckets(starts: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """Return the piece at the start of each bucket of offsets, and the size of a bucket."""
    least = max(_BUCKETS, _BUCKETS_A_PIECE * starts.size)
    shift = max(0, int(starts[-1]).bit_length() - least.bit_length() + 1)
    begins = np.arange(0, int(starts[-1]), 1 << shift)
    return (np.searchsorted(starts, begins, side="right") - 1).astype(np.int32), shift
