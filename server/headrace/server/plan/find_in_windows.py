"""Find samples window by window, with compiled loops: from positions to blocks in one call.

What has to be known of a window, its permutation and where its runs lie in blocks, is worked out
once and kept for all streams of the order. Then a batch costs its own samples, wherever it begins
and however few of them a rank has.

Contract:

1. What is found is what `PlainFinder` finds. It is asked where there are no kernels, and where the
   order cannot be read by windows.
2. What is kept is bounded: `_MAX_WINDOWS` windows of `_MAX_PIECES` pieces each, and but for the
   newest `_MAX_BYTES` of them all. The order itself keeps as little as if nobody read it.
3. Safe for several threads. Two that miss the same window both work it out; one is kept.

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

from headrace.order import NETWORK_ROUNDS, Order, Window, network_sides
from headrace.server.kernels.loader import KERNELS
from headrace.server.plan.compiled_lookups import Located
from headrace.server.plan.find_samples import Found, FoundTogether, PlainFinder, Range
from headrace.storage import OpenDataset

# The last and the next of each of 16 lanes.
_MAX_WINDOWS = 32
# As much as an order keeps of the same when it is asked for samples. A permutation takes 2 MiB at
# most.
_MAX_BYTES = 32 << 20
# Of 40 bytes each. A window has some thousands, and their numbers must fit 16 bits.
_MAX_PIECES = 1 << 15
# Lanes that change more often within a unit are read through the order (arbitrary).
_MIN_STRETCH = 64

# The kernel goes from a bucket's first piece to the one wanted. There are so many buckets that few
# have a border in them (a wrong guess of the processor costs more than all else); they stay in its
# first cache.
_BUCKETS = 1 << 13

_NO_TABLES = np.empty((0, 0), np.uint16)
_NO_IDS = np.empty(0, np.int64)

_Stretch: TypeAlias = tuple[int, int, int]
"""A lane, and places ``[first, end)`` of it."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedWindow:
    """A window of the order, and where its samples lie.

    Attributes:
        epoch: Its epoch.
        lane: Its lane.
        start: Its first place in the lane.
        end: The place after its last.
        whole: As the kernel `find_places` takes it, and so the others.
        tables: The same.
        width: The same.
        pieces: The same.
        buckets: The same.
        shift: The same.
        blocks: As the kernel takes them.
    """

    epoch: int
    lane: int
    start: int
    end: int
    whole: NDArray[np.int64]
    tables: NDArray[np.uint16]
    width: int
    pieces: NDArray[np.int64]
    buckets: NDArray[np.uint16]
    shift: int
    blocks: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = (self.whole, self.tables, self.pieces, self.buckets, self.blocks)
        return sum(array.nbytes for array in arrays)

    def holds(self, epoch: int, lane: int, place: int) -> bool:
        """Return whether a place of a lane is in this window."""
        return self.start <= place < self.end and self.lane == lane and self.epoch == epoch

    def holds_batch(self, stretches: Sequence[_Stretch]) -> bool:
        """Return whether a batch of its epoch is one stretch, in this window."""
        if len(stretches) != 1:
            return False
        ((lane, first, end),) = stretches
        return self.start <= first and end <= self.end and lane == self.lane

    def find(self, stretches: Sequence[_Stretch], kernels: ModuleType) -> list[Found]:
        """Return the samples of stretches of this window, each a batch."""
        start = self.start
        places = [(first - start, end - start) for _, first, end in stretches]
        count = sum(end - first for first, end in places)
        found = np.empty((3, count), np.int64)
        touched = np.empty(min(count, len(places) * self.blocks.size), np.int64)
        touched_ends = np.empty(len(places), np.int64)
        kernels.find_places(
            np.array(places, np.int64),
            self.whole,
            self.tables,
            self.width,
            self.end - start,
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


class WindowFinder:
    """Finds samples by their positions; the contract is above.

    Args:
        order: The order.
        dataset: The dataset.
    """

    def __init__(self, order: Order, dataset: OpenDataset) -> None:
        self._order = order
        self._dataset = dataset
        self._plain = PlainFinder(order, Located(dataset))
        self.fingerprint = dataset.fingerprint
        self.sample_count = order.sample_count
        self.skipped = order.skipped
        spec = order.spec
        self._is_by_window = spec.lanes == 1 or spec.unit // spec.lanes >= _MIN_STRETCH
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[int, int, int], PlacedWindow] = OrderedDict()
        self._last: PlacedWindow | None = None

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[Found]:
        """Return the samples at the positions of each batch, which may be several ranges."""
        kernels = KERNELS.module
        if kernels is None or not self._is_by_window:
            return self._plain.find(epoch, batches)
        stretches = [self._stretches(batch) for batch in batches]
        found: list[Found] = []
        while (at := len(found)) < len(batches):
            if not stretches[at]:
                found += FoundTogether(_NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS).cut([0], [0])
                continue
            lane, first, _ = stretches[at][0]
            window = self._window(epoch, lane, first, kernels)
            if window is None:
                return found + self._plain.find(epoch, batches[at:])
            run = list(takewhile(window.holds_batch, stretches[at:]))
            if run:
                found += window.find([stretch for (stretch,) in run], kernels)
            else:
                found += self._across(epoch, batches[at], stretches[at], kernels)
        return found

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
        """Return the samples of a batch that lies in several windows, or in several lanes."""
        parts: list[Found] = []
        for lane, first, end in stretches:
            place = first
            while place < end:
                window = self._window(epoch, lane, place, kernels)
                if window is None:
                    return self._plain.find(epoch, [batch])
                stop = min(end, window.end)
                parts += window.find([(lane, place, stop)], kernels)
                place = stop
        joined = FoundTogether(
            np.concatenate([part.sample_ids for part in parts]),
            np.concatenate([part.blocks for part in parts]),
            np.concatenate([part.offsets for part in parts]),
            np.unique(np.concatenate([part.touched for part in parts])),
        )
        return joined.cut([joined.sample_ids.size], [joined.touched.size])

    def _window(
        self, epoch: int, lane: int, place: int, kernels: ModuleType
    ) -> PlacedWindow | None:
        window = self._last
        if window is not None and window.holds(epoch, lane, place):
            return window
        with self._lock:
            # What was read last comes last.
            for window in reversed(self._windows.values()):
                if window.holds(epoch, lane, place):
                    self._windows.move_to_end((epoch, lane, window.start))
                    self._last = window
                    return window
        window = self._placed(epoch, lane, place, kernels)
        if window is None:
            # It is so by the order's options, or else rare: then all of it is read the other way.
            self._is_by_window = False
            return None
        with self._lock:
            self._windows[epoch, lane, window.start] = window
            self._evict()
        self._last = window
        return window

    def _evict(self) -> None:
        kept_bytes = sum(window.nbytes for window in self._windows.values())
        while len(self._windows) > 1 and (
            len(self._windows) > _MAX_WINDOWS or kept_bytes > _MAX_BYTES
        ):
            _, window = self._windows.popitem(last=False)
            kept_bytes -= window.nbytes

    def _placed(
        self, epoch: int, lane: int, place: int, kernels: ModuleType
    ) -> PlacedWindow | None:
        window = self._order.window(epoch, lane, place)
        if window is None:
            return None
        pieces = _pieces(window, self._dataset)
        if pieces is None:
            return None
        table, blocks = pieces
        buckets, shift = _buckets(table[:, 0])
        whole, tables, width = _permutation(window, kernels)
        return PlacedWindow(
            epoch=epoch,
            lane=lane,
            start=window.start,
            end=window.start + window.count,
            whole=whole,
            tables=tables,
            width=width,
            pieces=table,
            buckets=buckets,
            shift=shift,
            blocks=blocks,
        )


def _permutation(
    window: Window, kernels: ModuleType
) -> tuple[NDArray[np.int64], NDArray[np.uint16], int]:
    """Return what permutes a window, as the kernel `find_places` takes it."""
    keys = np.uint64(window.key), np.uint64(window.second_key)
    if window.is_small:
        words = np.empty(window.count, np.uint64)
        number_bits = (window.count - 1).bit_length()
        kernels.sorting_words(*keys, number_bits, words)
        words.sort()
        words &= np.uint64((1 << number_bits) - 1)
        return words.view(np.int64), _NO_TABLES, 1
    width, height = network_sides(window.count)
    tables = np.zeros((NETWORK_ROUNDS, max(width, height)), np.uint16)
    kernels.network_tables(*keys, width, height, tables)
    return _NO_IDS, tables, width


def _pieces(
    window: Window, dataset: OpenDataset
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Cut the runs of a window where blocks end; None if that makes too many.

    Returns:
        The pieces and the distinct blocks, as the kernel `find_places` takes them.
    """
    located = Located(dataset)
    first_blocks, _ = located.locate(window.first_ids)
    last_blocks, _ = located.locate(window.first_ids + window.lengths - 1)
    counts = last_blocks - first_blocks + 1
    count = int(counts.sum())
    if count > _MAX_PIECES:
        return None
    runs = np.repeat(np.arange(counts.size), counts)
    first_pieces, run_starts = np.cumsum(counts) - counts, np.cumsum(window.lengths)
    run_starts -= window.lengths
    blocks = first_blocks[runs] + np.arange(count) - first_pieces[runs]
    block_ids = dataset.block_first_samples(blocks)
    first_ids = np.maximum(block_ids, window.first_ids[runs])
    distinct, own = np.unique(blocks, return_inverse=True)
    pieces = np.zeros((count + 1, 4), np.int64)
    pieces[:-1, 0] = run_starts[runs] + first_ids - window.first_ids[runs]
    pieces[:-1, 1] = first_ids
    pieces[:-1, 2] = first_ids - block_ids
    pieces[:-1, 3] = own
    pieces[-1, 0] = window.count
    return pieces, distinct


def _buckets(starts: NDArray[np.int64]) -> tuple[NDArray[np.uint16], int]:
    """Return the piece at the begin of each bucket of places, and how large a bucket is."""
    shift = max(0, int(starts[-1]).bit_length() - _BUCKETS.bit_length() + 1)
    begins = np.arange(0, int(starts[-1]), 1 << shift)
    return (np.searchsorted(starts, begins, side="right") - 1).astype(np.uint16), shift
