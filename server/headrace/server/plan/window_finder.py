"""Find samples for a job whose shuffle may not fit into its part of the cache.

Contract:

1. The samples and their order are those of the finder that this one stands before.
2. At the start of each window it asks how much of the cache the job may use. If what the job
   shuffles together fits, the window is read in whole blocks, as it always would be.
3. Otherwise a part of the blocks is kept whole, spread evenly over storage, and a piece of each
   other one (`headrace.server.cache.windows`). Two windows of pieces have room beside them: one
   that is served, and the next, which is fetched meanwhile. The length of windows is the one with
   which the fewest bytes are read.
4. All streams of a job share its windows, wherever each of them is.
5. What was found keeps its windows alive.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.needs import CacheNeed
from headrace.server.cache.pieces import Pieces
from headrace.server.cache.windows import Window, Windows
from headrace.server.plan.compiled import distinct_each
from headrace.server.plan.find_samples import BatchPlaces, Finder, Range

# Windows of pieces that the cache holds: one is served while the next is fetched.
_ALIVE = 2
# Batches whose pieces lie beside them, of the window before and of the one after the next.
_BATCHES = 4
# One part in so many of what a job may use is left for blocks in flight and gaps between pieces.
# (What a job needs of data that it does not shuffle as a whole leaves room for blocks in flight.)
_LEFT_FREE, _LEFT_BETWEEN = 12, 48
# Windows of a job that fits, as a part of what it shuffles together: as often it asks again. A job
# that shuffles little would ask for each sample, and look through as many windows for each.
_PLAIN_WINDOWS, _LEAST_PLAIN = 8, 1 << 12
_MOST_WINDOWS = 1 << 10
# A window's table takes 12 bytes a sample (arbitrary: 24 MiB, three times).
_MOST_SAMPLES = 1 << 21
_CHUNK = 1 << 17
# Blocks that are kept whole together, so that one read brings neighbours.
_GROUP_BITS = 3
# Places in blocks are below 2^31.
_OFFSET_BITS = 31
_GOLDEN, _FULL = 0x9E3779B1, 1 << 32


@dataclass(frozen=True, slots=True)
class Cut:
    """How an epoch is cut.

    Attributes:
        whole: The part of all blocks that is kept whole, in [0, 1].
        count: How many windows there are in what is shuffled together.
    """

    whole: float
    count: int


def cut_of(
    needed_bytes: int, part_bytes: int, *, least_bytes: int, batch: float = 0.0
) -> Cut | None:
    """Return how to read the fewest bytes with a part of the cache; None if all fits.

    A job that keeps a part of its blocks whole, and reads the others once in each of n windows of
    what it shuffles together, needs room for that part, and for two windows of the others and the
    batches that are planned and made at a border.

    Args:
        needed_bytes: What the job needs.
        part_bytes: What it may use.
        least_bytes: With so much, all fits. It is less than what is needed, unless all data of the
            job is shuffled together.
        batch: The size of a global batch, as a part of what is shuffled together.
    """
    if least_bytes <= part_bytes:
        return None
    left = _LEFT_FREE if least_bytes == needed_bytes else _LEFT_BETWEEN
    free = part_bytes / needed_bytes * (1 - 1 / left)
    beside = min(_BATCHES * batch, free / 2)

    def pieces(count: int) -> float:
        """Return the part of the blocks that are read once a window."""
        return (1 - free) / (1 - beside - _ALIVE / count)

    first = math.ceil(_ALIVE / max(free - beside, _ALIVE / _MOST_WINDOWS))
    first = max(_ALIVE + 1, first)
    best = min(range(first, 2 * first + 2), key=lambda count: (count - 1) * pieces(count))
    return Cut(1 - min(1.0, pieces(best)), best)


class Stretch:
    """A stretch of an epoch.

    Attributes:
        epoch: Its epoch.
        start: Its first position.
        end: The position after its last.
        window: Its pieces; None if it is read in whole blocks.
        numbers: ``(places,) int64``: the block or piece of each sample or piece of a row, if there
            are pieces.
        offsets: ``(places,) int32``: the place of each in that.
        starts: ``(positions + 1,) int64``: the first place of each position, and the end; None if
            each position is one place.
        pieces: The distinct pieces, ascending.
    """

    __slots__ = (
        "__weakref__",
        "end",
        "epoch",
        "numbers",
        "offsets",
        "pieces",
        "start",
        "starts",
        "window",
    )

    def __init__(
        self,
        epoch: int,
        start: int,
        end: int,
        *,
        window: Window | None = None,
        numbers: NDArray[np.int64] | None = None,
        offsets: NDArray[np.int32] | None = None,
        starts: NDArray[np.int64] | None = None,
    ) -> None:
        nothing = np.empty(0, np.int64)
        self.epoch, self.start, self.end = epoch, start, end
        self.window = window
        self.numbers = nothing if numbers is None else numbers
        self.offsets = np.empty(0, np.int32) if offsets is None else offsets
        self.starts = starts
        self.pieces = nothing
        if window is not None:
            self.pieces = np.unique(self.numbers[self.numbers >= window.first])

    def places(self, start: int, end: int) -> slice:
        """Return the places of positions ``[start, end)`` of the epoch."""
        first, past = start - self.start, end - self.start
        if self.starts is not None:
            first, past = self.starts[[first, past]].tolist()
        return slice(first, past)

    def part(self, index: int, count: int) -> NDArray[np.int64]:
        """Return the distinct blocks and pieces of one of ``count`` equal parts of it."""
        size = self.numbers.size
        return np.unique(self.numbers[size * index // count : size * (index + 1) // count])

    def holds(self, epoch: int, position: int) -> bool:
        """Return whether a position of an epoch is in it."""
        return self.start <= position < self.end and self.epoch == epoch


class WindowFinder:
    """Finds the samples of one job; thread-safe. The contract is above.

    Attributes:
        ordered: Finds the samples.

    Args:
        ordered: Finds the samples.
        windows: The windows of the dataset.
        need: What the job needs of the cache.
        part_bytes: Returns how much of it the job may use now.
        together: The number of positions that are shuffled together.
        batch: The number of positions of a global batch.
    """

    def __init__(
        self,
        ordered: Finder,
        windows: Windows,
        *,
        need: CacheNeed,
        part_bytes: Callable[[], int],
        together: int,
        batch: int,
    ) -> None:
        self.ordered = ordered
        self.steps, self.replacing = ordered.steps, ordered.replacing
        self.fingerprint = ordered.fingerprint
        self.sample_count = ordered.sample_count
        self.lane_bytes = ordered.lane_bytes
        self.skipped, self.has_substitutes = ordered.skipped, ordered.has_substitutes
        self.positions = ordered.positions
        self._windows = windows
        self._need = need
        self._part_bytes = part_bytes
        self._together = max(1, together)
        self._batch = batch
        self._lock = threading.Lock()
        self._alive: WeakValueDictionary[tuple[int, int], Stretch] = WeakValueDictionary()
        self._last: Stretch | None = None
        # The places of windows that a stream, of any process, may still use.
        self._used: dict[int, tuple[int, int]] = {}
        self._whole = 1.0

    @property
    def is_cut(self) -> bool:
        """Whether the latest window has pieces."""
        return self._whole < 1

    @property
    def ahead(self) -> int:
        """The number of positions to look ahead at most: a part of a window if there are pieces."""
        last = self._last
        return (last.end - last.start) // 4 if last is not None and last.window else 1 << 62

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[BatchPlaces]:
        """Return the samples at the positions of each batch, which may be several ranges."""
        found = self.ordered.find(epoch, batches)
        ranges = [each for batch in batches for each in batch]
        cuts = list(self._stretches(epoch, ranges))
        if not found or not any(stretch.window for stretch, *_ in cuts):
            return found
        together = found[0].together
        numbers, offsets = together.blocks.copy(), together.offsets.copy()
        at = 0
        for stretch, start, end in cuts:
            items = np.array([at, at := at + end - start])
            if stretch.window is not None:
                first, past = together.places_before(items).tolist()
                own = stretch.places(start, end)
                numbers[first:past] = stretch.numbers[own]
                offsets[first:past] = stretch.offsets[own]
        ends = list(accumulate(sum(stop - start for start, stop in batch) for batch in batches))
        place_ends = together.places_before(np.array(ends)).tolist()
        touched = distinct_each(numbers, place_ends)
        return replace(
            together,
            blocks=numbers,
            offsets=offsets,
            touched=np.concatenate([*touched, numbers[:0]]),
            alive=tuple(dict.fromkeys(stretch for stretch, *_ in cuts)),
        ).cut(ends, accumulate(own.size for own in touched))

    def blocks_of_runs(self, epoch: int, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the blocks that are kept whole of the runs of given samples, ascending."""
        blocks = self.ordered.blocks_of_runs(epoch, sample_ids)
        return blocks[self._are_whole(blocks, self._whole)] if self.is_cut else blocks

    def stretch(self, epoch: int, position: int) -> Stretch:
        """Return the stretch that holds a position."""
        last = self._last
        if last is not None and last.holds(epoch, position):
            return last
        with self._lock:
            self._windows.free()
            stretch = self._known(epoch, position) or self._made(epoch, position)
            self._alive[epoch, stretch.start] = self._last = stretch
        return stretch

    def has_before(self, stretch: Stretch) -> bool:
        """Return whether a stream of the job still needs pieces of an earlier window."""
        with self._lock:
            self._used = {
                number: place
                for number, place in self._used.items()
                if self._windows.is_used(number)
            }
            return any(place < (stretch.epoch, stretch.start) for place in self._used.values())

    def _stretches(self, epoch: int, ranges: Sequence[Range]) -> Iterator[tuple[Stretch, int, int]]:
        """Cut ranges of positions by the stretches that they lie in."""
        for start, stop in ranges:
            at = start
            while at < stop:
                stretch = self.stretch(epoch, at)
                end = min(stop, stretch.end)
                yield stretch, at, end
                at = end

    def _known(self, epoch: int, position: int) -> Stretch | None:
        alive = list(self._alive.values())
        return next((each for each in alive if each.holds(epoch, position)), None)

    def _made(self, epoch: int, position: int) -> Stretch:
        cut = cut_of(
            self._need.needed_bytes,
            self._part_bytes(),
            least_bytes=self._need.least_bytes,
            batch=self._batch / self._together,
        )
        count, least = (_PLAIN_WINDOWS, _LEAST_PLAIN) if cut is None else (cut.count, 1)
        length = max(least, min(_MOST_SAMPLES, -(-self._together // count)))
        start = position - position % length
        end = min(self.sample_count, start + length)
        for each in list(self._alive.values()):
            if each.epoch == epoch:
                start = max(start, each.end) if each.end <= position else start
                end = min(end, each.start) if each.start > position else end
        if cut is None:
            self._whole = 1.0
            return Stretch(epoch, start, end)
        self._whole = cut.whole
        return self._cut(epoch, start, end, cut.whole)

    def _cut(self, epoch: int, start: int, end: int, whole: float) -> Stretch:
        numbers, offsets, starts = self._found_all(epoch, start, end)
        of_pieces = np.flatnonzero(~self._are_whole(numbers, whole))
        # Rows may have several parts of a document.
        keys = numbers[of_pieces] << _OFFSET_BITS | offsets[of_pieces]
        distinct, owners = np.unique(keys, return_inverse=True)
        blocks, firsts = np.unique(distinct >> _OFFSET_BITS, return_index=True)
        firsts = np.append(firsts, distinct.size)
        places = (distinct & (1 << _OFFSET_BITS) - 1).astype(np.int32)
        window = self._windows.add(Pieces(blocks, firsts, places))
        ranks = np.arange(distinct.size) - np.repeat(firsts[:-1], np.diff(firsts))
        self._used[window.number] = epoch, start
        offsets[of_pieces] = ranks[owners]
        numbers[of_pieces] += window.first
        return Stretch(
            epoch, start, end, window=window, numbers=numbers, offsets=offsets, starts=starts
        )

    def _found_all(
        self, epoch: int, start: int, end: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64] | None]:
        """Return the block and offset of each place, and the first place of each position.

        The last is None if each position is one place.
        """
        parts = []
        for first in range(start, end, _CHUNK):
            (found,) = self.ordered.find(epoch, [[(first, min(end, first + _CHUNK))]])
            counts = np.diff(found.together.places_before(np.arange(found.end + 1)))
            parts.append((found.blocks.copy(), found.offsets.astype(np.int32), counts))
        numbers, offsets, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
        if np.all(counts == 1):
            return numbers, offsets, None
        return numbers, offsets, np.concatenate([[0], np.cumsum(counts)])

    def _are_whole(self, blocks: NDArray[np.int64], whole: float) -> NDArray[np.bool_]:
        """Return which blocks are kept whole; those with a smaller part are among them."""
        place = (blocks >> _GROUP_BITS) * _GOLDEN % _FULL
        are: NDArray[np.bool_] = place < whole * _FULL
        return are
