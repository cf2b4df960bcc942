"""Spread the runs of each piece evenly over the whole epoch.

A run has a time in [0, 2**62). A piece of n runs has one in each n-th of the epoch, at the piece's
phase. The phases of neighbouring pieces of equal size form a lattice that is as even as possible:
multiples of a number whose continued fraction has small terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.caches import BoundedCache
from headrace.order.basics.hash import Stream, derive, draw
from headrace.order.basics.segments import by_value, starts_of
from headrace.order.samples.runs import RunPieces, Runs
from headrace.order.spread.run_tree import coins_of, tree_places, tree_runs

_Array = NDArray[np.int64]

TIME_BITS: Final = 62
PHASE_BITS: Final = 32
_PHASE_MASK: Final = (1 << PHASE_BITS) - 1
_TERMS: Final = 48
# Runs that are worked out together; 1,024 take 40 KiB and half a millisecond.
_SLAB_RUNS: Final = 1 << 10
_COARSE_SLABS: Final = 1 << 12
_SLAB_BYTES: Final = 16 << 20
# Short runs that are placed together, which bounds memory.
_TOGETHER: Final = 1 << 16
# Most slabs that are joined for a search; if there are more, each is searched alone.
_JOINED_SLABS: Final = 1 << 6
_NEAR_SLABS: Final = 4


def lattices(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the multiplier of each epoch's phases, odd and below 2**32, from a draw for each."""
    above, below = np.zeros_like(words), np.ones_like(words)
    for term in range(_TERMS - 1, -1, -1):
        terms = (words >> np.uint64(term) & np.uint64(1)) + np.uint64(1)
        above, below = below, terms * below + above
    # Both have up to 61 bits.
    parts = zip(above.tolist(), below.tolist(), strict=True)
    return np.array([(over << PHASE_BITS) // under | 1 for over, under in parts], np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class _Slab:
    # One slab, or several joined neighbours; `first` is the number of the first.
    first: int
    start: int
    stop: int
    offsets: _Array
    first_ids: _Array

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + self.first_ids.nbytes


class _Group:
    """The pieces of one size.

    Attributes:
        size: Number of runs of each piece.
        step: Time from one run of a piece to the next.
        shift: Phase of the first piece.
    """

    def __init__(self, size: int, members: NDArray[np.int32], multiplier: int, shift: int) -> None:
        self.size = size
        self.members = members
        self.step = (1 << TIME_BITS) // size
        self._scale = self.step >> PHASE_BITS
        self._multiplier, self._shift = np.uint32(multiplier), np.uint32(shift)
        self._inverse = np.uint32(pow(multiplier, -1, 1 << PHASE_BITS))
        self._sorted = self._phases(np.arange(len(members), dtype=np.uint32))
        self._sorted.sort()
        self._samples: _Array | int = 0
        self._short_times = np.zeros(0, np.int64)
        self._short_samples: _Array | int = 0

    def weigh(self, samples: _Array, short_times: _Array, missing: _Array) -> None:
        """Set the samples per run of each piece, and the times of shorter runs with what they lack.

        The group keeps and changes the array of times.
        """
        least = int(samples.min())
        if least == int(samples.max()):
            self._samples = least
        else:
            self._samples = np.zeros(len(samples) + 1, np.int64)
            np.cumsum(samples[self._ordinals(self._sorted)], out=self._samples[1:])
        lost = int(missing[0]) if len(missing) else 0
        if (missing == lost).all():
            # Most datasets have shards of equal size; for large ones this saves much memory.
            self._short_samples = lost
            short_times.sort()
            self._short_times = short_times
            return
        order = np.argsort(short_times)
        self._short_times = short_times[order]
        self._short_samples = np.zeros(len(missing) + 1, np.int64)
        np.cumsum(missing[order], out=self._short_samples[1:])

    def times(self, ordinals: NDArray[np.int32], places: _Array) -> _Array:
        """Return the times of places of pieces."""
        phases = self._phases(ordinals.astype(np.uint32)).astype(np.int64)
        return places * self.step + phases * self._scale

    def samples_before(self, times: _Array) -> _Array:
        """Return how many samples lie before each time."""
        cycles, places = self._rank(times)
        if isinstance(self._samples, int):
            before: _Array = (cycles * len(self.members) + places) * self._samples
        else:
            before = cycles * self._samples[-1] + self._samples[places]
        short = np.searchsorted(self._short_times, times)
        if isinstance(self._short_samples, int):
            lost: _Array = short * self._short_samples
        else:
            lost = self._short_samples[short]
        before -= lost
        return before

    def between(self, start: int, stop: int) -> tuple[_Array, _Array, _Array]:
        """Return the ordinals, places and times of the runs in [start, stop), times rising."""
        cycles, places = self._rank(np.array([start, stop]))
        first, end = (cycles * len(self.members) + places).tolist()
        cycle, index = np.divmod(np.arange(first, end), len(self.members))
        phases = self._sorted[index]
        times = cycle * self.step + phases.astype(np.int64) * self._scale
        return self._ordinals(phases), cycle, times

    def _rank(self, times: _Array) -> tuple[_Array, _Array]:
        cycles, rest = np.divmod(times, self.step)
        past = cycles >= self.size
        cycles[past], rest[past] = self.size, 0
        # The lowest phase that is not before the time.
        least = -(-rest // self._scale)
        over = least > _PHASE_MASK
        places = np.searchsorted(self._sorted, (least & _PHASE_MASK).astype(np.uint32))
        places[over] = len(self.members)
        places[past] = 0
        return cycles, places

    def _phases(self, ordinals: NDArray[np.uint32]) -> NDArray[np.uint32]:
        return ordinals * self._multiplier + self._shift

    def _ordinals(self, phases: NDArray[np.uint32]) -> _Array:
        return ((phases - self._shift) * self._inverse).astype(np.int64)


class Spread:
    """The layout of one epoch: its runs end to end, by time; thread-safe.

    Args:
        runs: The dataset's runs.
        pieces: Its pieces.
        key: The key of the epoch.
    """

    def __init__(self, runs: Runs, pieces: RunPieces, key: int) -> None:
        self._runs, self._pieces = runs, pieces
        self._coins = coins_of(derive(key, Stream.COINS))
        phase_key = derive(key, Stream.PHASES)
        multiplier = int(lattices(draw(phase_key, np.zeros(1, np.uint64)))[0])
        self._groups = {}
        for size, members in pieces.groups.items():
            shift = int(draw(phase_key, np.array([size], np.uint64))[0]) >> PHASE_BITS
            self._groups[size] = _Group(size, members, multiplier, shift)
        self._weigh()
        slabs = max(runs.count // _SLAB_RUNS, 1)
        self._slab_bits = TIME_BITS - (slabs - 1).bit_length()
        self._slabs = 1 << (TIME_BITS - self._slab_bits)
        coarse = min(self._slabs, _COARSE_SLABS)
        self._coarse = np.arange(coarse) * (self._slabs // coarse)
        self._coarse_starts = self._starts(self._coarse)
        self._cache: BoundedCache[int, _Slab] = BoundedCache(_SLAB_BYTES)
        self._recent: _Slab | None = None

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the epoch's tables."""
        return 32 * len(self._pieces.shards) + 16 * len(self._runs.first_ids)

    def sample_ids(self, offsets: _Array) -> _Array:
        """Return the sample id at each offset: (n,) int64."""
        if not len(offsets):
            return offsets.copy()
        slab = self._around(int(offsets.min()), int(offsets.max()))
        if slab is not None:
            return _read(slab, offsets)
        sample_ids = np.empty_like(offsets)
        owners = self._find(offsets)
        order = np.argsort(owners, kind="stable")
        slabs, starts = np.unique(owners[order], return_index=True)
        for slab, members in zip(slabs.tolist(), np.split(order, starts[1:]), strict=True):
            sample_ids[members] = _read(self._slab(slab), offsets[members])
        return sample_ids

    def between(self, low: int, high: int) -> _Array:
        """Return the sample ids at the offsets [low, high): (high - low,) int64."""
        runs = self.stretch(low, high)
        if runs is None:
            middle = (low + high) // 2
            return np.concatenate([self.between(low, middle), self.between(middle, high)])
        first_ids, counts = runs
        sample_ids = np.repeat(first_ids - starts_of(counts)[:-1], counts)
        sample_ids += np.arange(len(sample_ids))
        return sample_ids

    def stretch(self, low: int, high: int) -> tuple[_Array, _Array] | None:
        """Return the runs in [low, high), and how many samples of each lie there.

        Args:
            low: First offset.
            high: Offset after the last, > `low`.

        Returns:
            The first sample id of each run, or of the part that lies there, and its number of
            samples; None if there are too many runs to work out at once.
        """
        slab = self._around(low, high - 1)
        if slab is None:
            return None
        start = int(np.searchsorted(slab.offsets, low, side="right")) - 1
        end = int(np.searchsorted(slab.offsets, high))
        edges = np.empty(end - start + 1, np.int64)
        edges[:-1], edges[-1] = np.maximum(slab.offsets[start:end], low), high
        first_ids = slab.first_ids[start:end] + edges[:-1] - slab.offsets[start:end]
        return first_ids, edges[1:] - edges[:-1]

    def offsets(self, sample_ids: _Array) -> _Array:
        """Return the offset of each sample: the inverse of `sample_ids`."""
        runs = self._runs
        shards = np.searchsorted(runs.first_ids, sample_ids, side="right") - 1
        numbers, rest = np.divmod(sample_ids - runs.first_ids[shards], runs.run_samples[shards])
        numbers += runs.first_runs[shards]
        times, sizes = np.empty_like(sample_ids), np.empty_like(sample_ids)
        for size, members, own_times in self._times(numbers):
            times[members], sizes[members] = own_times, size
        result: _Array = self._before(times, sizes) + rest
        return result

    def _times(self, numbers: _Array) -> list[tuple[int, _Array, _Array]]:
        # Return, for each size of pieces, the indices of the runs and their times.
        pieces = np.searchsorted(self._pieces.first_runs, numbers, side="right") - 1
        first = self._pieces.first_runs[pieces]
        sizes = self._pieces.first_runs[pieces + 1] - first
        places = tree_places(self._coins, first, sizes, numbers)
        found = []
        for size, members in by_value(sizes):
            ordinals = self._pieces.ordinals[pieces[members]]
            found.append((size, members, self._groups[size].times(ordinals, places[members])))
        return found

    def _weigh(self) -> None:
        runs, count = self._runs, len(self._runs.first_ids)
        none = np.zeros(0, np.int64)
        found = {size: ([none], [none]) for size in self._groups}
        for start in range(0, count, _TOGETHER):
            missing = runs.missing(start, min(start + _TOGETHER, count))
            (short,) = np.nonzero(missing)
            last = runs.first_runs[start + 1 : start + _TOGETHER + 1][short] - 1
            for size, members, times in self._times(last):
                found[size][0].append(times)
                found[size][1].append(missing[short[members]])
        for size, group in self._groups.items():
            samples = runs.run_samples[self._pieces.shards[group.members]]
            times, lost = map(np.concatenate, found.pop(size))
            group.weigh(samples, times, lost)

    def _before(self, times: _Array, sizes: _Array | int) -> _Array:
        # Return how many samples lie before each time. Runs with equal times, which are rare, come
        # in the order of the sizes of their pieces.
        before = np.zeros_like(times)
        for other, group in self._groups.items():
            before += group.samples_before(times + (other < sizes))
        return before

    def _starts(self, slabs: _Array) -> _Array:
        # The slab after the last would start at time 2**62, which all groups accept.
        return self._before(slabs << self._slab_bits, 0)

    def _find(self, offsets: _Array) -> _Array:
        coarse = np.searchsorted(self._coarse_starts, offsets, side="right") - 1
        low = self._coarse[coarse]
        width = self._slabs // len(self._coarse)
        while width > 1:
            width //= 2
            low += width * (self._starts(low + width) <= offsets)
        return low

    def _around(self, low: int, high: int) -> _Slab | None:
        # Return a slab that holds both offsets; None if too many would have to be joined.
        recent = self._recent
        if recent is not None and recent.start <= low < recent.stop:
            if high < recent.stop:
                return recent
            # Searched for once: a caller that reads on finds the next slab after the last.
            first = self._reach(recent.first, low)
            last = self._reach(first, high)
        else:
            first, last = self._find(np.array([low, high])).tolist()
        if last - first >= _JOINED_SLABS:
            return None
        self._recent = joined = self._join(first, last)
        return joined

    def _reach(self, slab: int, offset: int) -> int:
        # Return the slab of an offset that does not lie before `slab`.
        for near in range(slab, slab + _NEAR_SLABS):
            if offset < self._slab(near).stop:
                return near
        return int(self._find(np.array([offset]))[0])

    def _slab(self, slab: int) -> _Slab:
        return self._cache.get_once(slab, lambda: self._make(slab))

    def _join(self, first: int, last: int) -> _Slab:
        if first == last:
            return self._slab(first)

        slabs = [self._slab(slab) for slab in range(first, last + 1)]
        offsets = np.concatenate([slab.offsets for slab in slabs])
        first_ids = np.concatenate([slab.first_ids for slab in slabs])
        return _Slab(first, slabs[0].start, slabs[-1].stop, offsets, first_ids)

    def _make(self, slab: int) -> _Slab:
        start, stop = slab << self._slab_bits, (slab + 1) << self._slab_bits
        pieces, places, times = [], [], []
        for group in self._groups.values():
            ordinals, own_places, own_times = group.between(start, stop)
            pieces.append(group.members[ordinals])
            places.append(own_places)
            times.append(own_times)
        order = np.argsort(np.concatenate(times), kind="stable")
        piece = np.concatenate(pieces)[order]
        first = self._pieces.first_runs[piece]
        sizes = self._pieces.first_runs[piece + 1] - first
        numbers = tree_runs(self._coins, first, sizes, np.concatenate(places)[order])
        shards = self._pieces.shards[piece].astype(np.int64)
        first_ids, counts = self._runs.start_and_size(numbers, shards)
        offsets = starts_of(counts) + self._starts(np.array([slab]))
        return _Slab(slab, int(offsets[0]), int(offsets[-1]), offsets[:-1], first_ids)


class StoredLayout:
    """The layout of an epoch in storage order."""

    nbytes: Final = 0

    def sample_ids(self, offsets: _Array) -> _Array:
        """Return the sample id at each offset, which is the offset."""
        return offsets.copy()

    def between(self, low: int, high: int) -> _Array:
        """Return the sample ids at the offsets [low, high), which are the offsets."""
        return np.arange(low, high)

    def stretch(self, low: int, high: int) -> tuple[_Array, _Array]:
        """Return the samples in [low, high) as one run."""
        return np.array([low]), np.array([high - low])

    def offsets(self, sample_ids: _Array) -> _Array:
        """Return the offset of each sample."""
        return sample_ids.copy()


def _read(slab: _Slab, offsets: _Array) -> _Array:
    places = np.searchsorted(slab.offsets, offsets, side="right") - 1
    sample_ids: _Array = slab.first_ids[places]
    sample_ids += offsets
    sample_ids -= slab.offsets[places]
    return sample_ids
