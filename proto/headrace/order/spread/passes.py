"""Layouts of many small passes at once; `Spread` is the layout of a large one.

A batch of a mixture needs a pass over each of its datasets. Passes over datasets with few runs are
worked out whole and together, and are held here one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order.basics.hash import Stream, derive_each, draw_each, second_keys_of
from headrace.order.basics.segments import spread, starts_of, sums_before, totals
from headrace.order.samples.runs import MOST_RUNS, AllRuns, binary_pieces
from headrace.order.spread.run_tree import LEVEL_BITS, WORD_BITS, Coins, bits_of, tree_runs
from headrace.order.spread.spread import PHASE_BITS, TIME_BITS, lattices

_Array: TypeAlias = NDArray[np.int64]
_Keys: TypeAlias = NDArray[np.uint64]

# Larger datasets are opened part by part.
PASS_RUNS: Final = 1 << 10
_LOW_HALF: Final = np.uint64((1 << PHASE_BITS) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """The layouts of several passes, one after the other.

    Attributes:
        starts: (passes + 1,) int64, offset of each pass's first sample.
        run_starts: (runs,) int64, offset of each run's first sample.
        first_ids: (runs,) int64, sample id in its dataset of each run's first sample.
    """

    starts: _Array
    run_starts: _Array
    first_ids: _Array

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.starts.nbytes + self.run_starts.nbytes + self.first_ids.nbytes

    def join(self, later: Passes) -> Passes:
        """Return these passes followed by others."""
        offset = self.starts[-1]
        return Passes(
            np.append(self.starts, later.starts[1:] + offset),
            np.append(self.run_starts, later.run_starts + offset),
            np.append(self.first_ids, later.first_ids),
        )

    def sample_ids(self, slots: _Array, offsets: _Array) -> _Array:
        """Return the sample id, in its dataset, at each offset of its pass.

        Args:
            slots: (n,) int64, the number of the pass here.
            offsets: (n,) int64, offset in that pass.
        """
        offsets = offsets + self.starts[slots]
        runs = np.searchsorted(self.run_starts, offsets, side="right") - 1
        offsets -= self.run_starts[runs]
        offsets += self.first_ids[runs]
        return offsets


class OpenPasses:
    """The passes worked out so far; when they exceed the budget, only those in use stay.

    The budget grows to at least twice what a single call needs.

    Not thread-safe: the owner holds a lock.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._keys = np.empty(0, np.uint64)
        self._slots = np.empty(0, np.int64)
        self._table: Passes | None = None

    def find(self, keys: _Keys, make: Callable[[_Array], Passes]) -> tuple[Passes, _Array]:
        """Return a table that holds certain passes, and their places in it.

        Args:
            keys: (n,) uint64, the key of each pass; keys may repeat.
            make: Makes a table of passes, given their places in `keys`.

        Returns:
            The table, and (n,) int64, the place of each pass in it.
        """
        slots = self._lookup(keys)
        missing = np.flatnonzero(slots < 0)
        if len(missing) or self._table is None:
            table = self._add(keys, missing, make)
            return table, self._lookup(keys)
        return self._table, slots

    def _add(
        self,
        keys: _Keys,
        missing: _Array,
        make: Callable[[_Array], Passes],
    ) -> Passes:
        if self._table is None or self._table.nbytes > self._budget_bytes:
            _, first = np.unique(keys, return_index=True)
            table, held = make(first), keys[first]
            # What one batch needs must fit, or every batch would start again.
            self._budget_bytes = max(self._budget_bytes, 2 * table.nbytes)
        else:
            _, first = np.unique(keys[missing], return_index=True)
            first = missing[first]
            table = self._table.join(make(first))
            held = np.append(self._keys[np.argsort(self._slots)], keys[first])
        self._table = table
        self._slots = np.argsort(held)
        self._keys = held[self._slots]
        return table

    def _lookup(self, keys: _Keys) -> _Array:
        if not len(self._keys):
            return np.full(len(keys), -1)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._slots[places], -1)


class PassMaker:
    """Works out passes over datasets, several at a time.

    Args:
        runs: The runs of all datasets.
        small: (datasets,) bool, the datasets to make passes over; each has at most `PASS_RUNS`
            runs.
    """

    def __init__(self, runs: AllRuns, small: NDArray[np.bool_]) -> None:
        owners, _ = spread(np.diff(runs.starts))
        (shards,) = np.nonzero(small[owners])
        owners = owners[shards]
        self._sample_counts = runs.sample_counts[shards]
        self._run_samples = runs.run_samples[shards]
        lengths = np.bincount(owners, minlength=len(small))
        self._first_ids = sums_before(self._sample_counts, lengths)
        self._first_runs = sums_before(runs.counts[shards], lengths)
        self._run_counts = totals(runs.counts[shards], lengths)
        pieces, sizes = binary_pieces(runs.counts[shards])
        before = sums_before(sizes, totals(np.bincount(pieces, minlength=len(shards)), lengths))
        # Smaller pieces come first, which is also the order of runs with equal times.
        names = owners[pieces] * (2 * MOST_RUNS) + sizes
        order = np.argsort(names, kind="stable")
        names = names[order]
        starts = np.searchsorted(names, names)
        self._ordinals = np.arange(len(names)) - starts
        self._piece_sizes, self._piece_runs = sizes[order], before[order]
        self._shards = pieces[order]
        self._piece_starts = np.searchsorted(owners[pieces][order], np.arange(len(small) + 1))

    def make(self, datasets: _Array, keys: _Keys) -> Passes:
        """Work out the layouts of passes.

        Args:
            datasets: (passes,) int64, the dataset of each pass, which must be small.
            keys: (passes,) uint64, the key of each pass.
        """
        counts = np.diff(self._piece_starts)[datasets]
        owners, places = spread(counts)
        pieces = self._piece_starts[datasets][owners] + places
        sizes = self._piece_sizes[pieces]
        phases = self._phases(keys, owners, pieces)
        of_run, turns = spread(sizes)
        steps = (1 << TIME_BITS) // sizes
        times = turns * steps[of_run] + (phases * (steps >> PHASE_BITS))[of_run]
        order = _by_time(owners[of_run], times, len(datasets))
        of_run, turns = of_run[order], turns[order]
        coins = self._coins(datasets, keys, owners[of_run])
        piece = pieces[of_run]
        numbers = tree_runs(coins, self._piece_runs[piece], sizes[of_run], turns)
        shards = self._shards[piece]
        before = (numbers - self._first_runs[shards]) * self._run_samples[shards]
        lengths = np.minimum(self._run_samples[shards], self._sample_counts[shards] - before)
        run_starts = starts_of(lengths)
        starts = run_starts[starts_of(totals(sizes, counts))]
        return Passes(starts, run_starts[:-1], self._first_ids[shards] + before)

    def _phases(self, keys: _Keys, owners: _Array, pieces: _Array) -> _Array:
        phase_keys = derive_each(keys, Stream.PHASES)
        second = second_keys_of(phase_keys)
        multipliers = lattices(draw_each(phase_keys, np.zeros(len(keys), np.uint64), second))
        words = self._piece_sizes[pieces].view(np.uint64)
        shifts = draw_each(phase_keys[owners], words, second[owners])
        shifts >>= np.uint64(PHASE_BITS)
        shifts += self._ordinals[pieces].view(np.uint64) * multipliers[owners]
        shifts &= _LOW_HALF
        return shifts.view(np.int64)

    def _coins(self, datasets: _Array, keys: _Keys, passes: _Array) -> Coins:
        # Each word of coins is drawn once, because most hold the coins of many runs.
        coin_keys = derive_each(keys, Stream.COINS)
        second = second_keys_of(coin_keys)
        counts = (self._run_counts[datasets] >> WORD_BITS) + 1
        owners, words = spread(counts)
        drawn = [
            draw_each(
                coin_keys[owners],
                words.view(np.uint64) + np.uint64(level << LEVEL_BITS),
                second[owners],
            )
            for level in range(MOST_RUNS.bit_length() - 1)
        ]
        starts = starts_of(counts)[passes]

        def coins(level: int, numbers: _Array, chosen: _Array | None) -> _Array:
            firsts = starts if chosen is None else starts[chosen]
            return bits_of(drawn[level][firsts + (numbers >> WORD_BITS)], numbers)

        return coins


def _by_time(passes: _Array, times: _Array, count: int) -> _Array:
    # Return the order of runs by pass and time; runs with equal times keep their order.
    spare = max(count - 1, 1).bit_length() - 1
    words = passes << (TIME_BITS - spare) | times >> spare
    order = np.argsort(words)
    words = words[order]
    if (words[1:] != words[:-1]).all():
        return order
    order = np.argsort(times, kind="stable")
    narrow = np.uint16 if count <= 1 << 16 else np.uint32
    result: _Array = order[np.argsort(passes[order].astype(narrow), kind="stable")]
    return result
