"""Find samples by their positions in an order whose windows are sorted by length.

Contract:

1. Positions are those of docs/order.md, length buckets, over the order of another finder.
2. A window is sorted by the lengths of samples in the order without skips, so that skips do not
   move positions here either.
3. At most `_MAX_BYTES` of windows are kept, but at least one window.
4. Safe for several threads: the ranks of a job, which need a window at about the same time, wait
   for the first of them.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.order import Buckets, Window
from headrace.server.plan.compiled import distinct_each
from headrace.server.plan.find_samples import BatchPlaces, Finder, Range, SamplePlaces

# Windows have about two megabytes, and ranks need one or two at a time.
_MAX_BYTES = 16 << 20
# NumPy sorts 16-bit numbers by radix, about ten times as fast.
_NARROW = np.uint16

_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Sorted:
    """A window in the order of its buckets.

    Attributes:
        arrangement: ``(places,) int64``: the place in the order of what comes at each place.
        sample_ids: ``(places,) int64``: the sample at each place.
        blocks: ``(places,) int64``: its block.
        offsets: ``(places,) int64``: its place in the block.
        is_skipped: ``(places,) bool``: whether it is a substitute; None if nothing is skipped.
    """

    arrangement: NDArray[np.int64]
    sample_ids: NDArray[np.int64]
    blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    is_skipped: NDArray[np.bool_] | None

    @property
    def nbytes(self) -> int:
        """Return the approximate size of the arrays in bytes."""
        return 4 * self.arrangement.nbytes


class BucketFinder:
    """Find samples by their positions, according to the contract above.

    Args:
        buckets: How windows are rearranged.
        ordered: Finds samples by their positions in the order.
        unskipped: The same without skips; the same object if nothing is skipped.
        lengths: Returns the lengths of samples by their ids.
        sample_bytes: The approximate raw size of a sample in bytes.

    Attributes:
        ordered: Finds samples in the order.
    """

    def __init__(
        self,
        buckets: Buckets,
        ordered: Finder,
        unskipped: Finder,
        *,
        lengths: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        sample_bytes: int,
    ) -> None:
        self.ordered: Finder = ordered
        self.steps, self.replacing = ordered.steps, ordered.replacing
        self.has_substitutes = ordered.has_substitutes
        self._buckets = buckets
        self._unskipped = unskipped
        self._lengths = lengths
        self.fingerprint: Final = ordered.fingerprint
        self.sample_count: Final = ordered.sample_count
        self.blocks_of_runs = ordered.blocks_of_runs
        window_samples = min(buckets.units * buckets.unit, ordered.sample_count)
        self.lane_bytes: Final = ordered.lane_bytes and (
            ordered.lane_bytes + window_samples * sample_bytes // buckets.lanes
        )
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int], _Sorted] = OrderedDict()
        self._kept_bytes = 0

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[BatchPlaces]:
        """Return the samples at the positions of each batch, which may be several ranges."""
        parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        counts = []
        for batch in batches:
            for start, stop in batch:
                parts += self._parts(epoch, start, stop)
            counts.append(sum(stop - start for start, stop in batch))
        ends = list(accumulate(counts))
        sample_ids, blocks, offsets = (
            np.concatenate(each) for each in zip((_NO_IDS,) * 3, *parts, strict=True)
        )
        touched = distinct_each(blocks, ends)
        together = SamplePlaces(sample_ids, blocks, offsets, np.concatenate([*touched, blocks[:0]]))
        return together.cut(ends, accumulate(each.size for each in touched))

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return the positions at which a substitute replaces a skipped sample."""
        parts = []
        for first, end, window in self._cut(start, stop):
            if window is None:
                parts.append(self.ordered.skipped(epoch, first, end))
                continue
            found = self._window(epoch, window).is_skipped
            own = slice(first - window.start, end - window.start)
            parts.append(np.zeros(end - first, np.bool_) if found is None else found[own])
        return np.concatenate([np.empty(0, np.bool_), *parts])

    def positions(self, epoch: int, sample_ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return all positions of given samples in an epoch."""
        found = self.ordered.positions(epoch, sample_ids)
        together = np.concatenate([_NO_IDS, *found])
        moved = together.copy()
        starts = {window.start: window for window in self._windows(together)}
        for window in starts.values():
            own = np.flatnonzero((together >= window.start) & (together < window.stop))
            arrangement = self._window(epoch, window).arrangement
            places = np.empty(arrangement.size, np.int64)
            places[arrangement] = np.arange(arrangement.size)
            moved[own] = window.start + places[together[own] - window.start]
        ends = np.cumsum([each.size for each in found])
        return [np.sort(each) for each in np.split(moved, ends[:-1])]

    def _windows(self, positions: NDArray[np.int64]) -> Iterator[Window]:
        for position in positions.tolist():
            window = self._buckets.window(position)
            if window is not None:
                yield window

    def _cut(self, start: int, stop: int) -> Iterator[tuple[int, int, Window | None]]:
        """Cut positions at the ends of windows; positions in no window come last."""
        while start < stop:
            window = self._buckets.window(start)
            end = stop if window is None else min(stop, window.stop)
            yield start, end, window
            start = end

    def _parts(
        self, epoch: int, start: int, stop: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        for first, end, window in self._cut(start, stop):
            if window is None:
                (found,) = self.ordered.find(epoch, [[(first, end)]])
                yield found.sample_ids, found.blocks, found.offsets
                continue
            own = slice(first - window.start, end - window.start)
            placed = self._window(epoch, window)
            yield placed.sample_ids[own], placed.blocks[own], placed.offsets[own]

    def _window(self, epoch: int, window: Window) -> _Sorted:
        key = (epoch, window.number)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
            found = self._kept[key] = self._sorted(epoch, window)
            self._kept_bytes += found.nbytes
            while self._kept_bytes > _MAX_BYTES and len(self._kept) > 1:
                _, gone = self._kept.popitem(last=False)
                self._kept_bytes -= gone.nbytes
        return found

    def _sorted(self, epoch: int, window: Window) -> _Sorted:
        whole = [[(window.start, window.stop)]]
        (found,) = (plain,) = self._unskipped.find(epoch, whole)
        lengths = self._lengths(plain.sample_ids)
        if int(lengths.max()) <= np.iinfo(_NARROW).max:
            lengths = lengths.astype(_NARROW)
        arrangement = self._buckets.arrangement(epoch, window, lengths)
        is_skipped = None
        if self.ordered is not self._unskipped:
            (found,) = self.ordered.find(epoch, whole)
            is_skipped = self.ordered.skipped(epoch, window.start, window.stop)[arrangement]
        return _Sorted(
            arrangement,
            found.sample_ids[arrangement],
            found.blocks[arrangement],
            found.offsets[arrangement],
            is_skipped,
        )
