"""Members: from draws to sample ids and back, for all datasets of a mixture at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.caches import BoundedCache
from headrace.order.basics.hash import Stream, derive, derive_each, second_keys_of
from headrace.order.basics.permutation import permutations, permute, unpermute
from headrace.order.basics.segments import starts_of, totals
from headrace.order.dealing.dealing import Dealings
from headrace.order.dealing.lanes import LaneSplit
from headrace.order.dealing.ramp import first_samples
from headrace.order.mixture.choice import FixedChoice, dataset_keys
from headrace.order.samples.runs import Runs, make_all_runs, make_pieces
from headrace.order.samples.shard_table import ShardTable
from headrace.order.samples.skips import Skipper, Skips, skipper_of
from headrace.order.samples.spec import OrderSpec
from headrace.order.spread.halves import Halves, halve
from headrace.order.spread.passes import PASS_RUNS, OpenPasses, Passes, PassMaker
from headrace.order.spread.spread import Spread, StoredLayout

_Array: TypeAlias = NDArray[np.int64]

# Larger steps are permuted by a network: a batch has only a few samples of each dataset.
SORT_LIMIT: Final = 1 << 6
_LAYOUT_BYTES: Final = 96 << 20
# Small, because adding to a table means copying it.
_HALVES_BYTES: Final = 8 << 20
_PASS_BYTES: Final = 8 << 20


SamplesOfPass: TypeAlias = Callable[[int], _Array]
"""Returns the ids, in their dataset, of the samples to look for in a pass."""


@dataclass(frozen=True, slots=True, eq=False)
class _LaneDraws:
    # Draws of one lane, sorted by dataset. A group is a stretch of draws in one pass of a dataset.
    # Each group has a pass and a first draw; each draw has a dataset, a group and a place in the
    # pass.
    datasets: _Array
    groups: _Array
    places: _Array
    firsts: _Array
    passes: _Array


class Members:
    """The orders of a mixture's datasets; thread-safe.

    If a lane has n samples of a dataset, draw j of it is place j mod n of pass j div n. A pass is
    shuffled like an epoch of a single dataset.

    Args:
        spec: The options, which hold for every dataset.
        tables: The datasets' shards.
        memories: (datasets,) int64, samples of each dataset that are shuffled together, >= 1.
        first_ids: (datasets + 1,) int64, how many samples the datasets before each one have.
        choice: Which samples of the datasets are used; None for all.
        skips: Samples to leave out, by their ids in the mixture.
        titles: Names of the datasets, for errors.
        drawn: (datasets,) bool, which datasets are drawn from.

    Attributes:
        memories: (datasets,) int64, the argument, limited to the samples of each dataset.
    """

    def __init__(
        self,
        spec: OrderSpec,
        tables: Sequence[ShardTable],
        *,
        memories: _Array,
        first_ids: _Array,
        choice: FixedChoice | None = None,
        skips: Skips | None = None,
        titles: Sequence[str],
        drawn: NDArray[np.bool_],
    ) -> None:
        self._spec = spec
        self._choice = choice
        self._first_ids = first_ids
        used = tables if choice is None else choice.tables
        self._is_fixed = np.array(
            [table is not own for table, own in zip(tables, used, strict=True)], np.bool_
        )
        self._runs = make_all_runs(spec, used)
        self._opened: dict[int, Runs] = {}
        counts = totals(self._runs.sample_counts, np.diff(self._runs.starts))
        self.memories = np.maximum(np.minimum(memories, counts), 1)
        self._counts = counts
        self._used_starts = starts_of(counts)
        self._split = LaneSplit(int(self._used_starts[-1]), spec.lanes, spec.unit)
        self._keys = dataset_keys(spec.seed, len(tables))
        run_counts = totals(self._runs.counts, np.diff(self._runs.starts))
        self._first_samples = first_samples(counts, run_counts) * spec.ramp
        # In what follows, the passes after the first of each dataset come before the first ones.
        self._dealings: dict[int, Dealings] = {}
        whole = np.tile((self.memories >= counts) & (spec.lanes == 1), 2)
        self._is_stored = whole & (self._dealing(0).opening == 0) | (not spec.shuffle)
        few = np.tile(run_counts <= PASS_RUNS, 2)
        # Datasets whose passes are opened together; the others are opened one by one.
        self._is_small = few & ~self._is_stored
        self._maker = PassMaker(self._runs, self._is_small.reshape(2, -1).any(axis=0))
        self._passes = OpenPasses(_PASS_BYTES)
        self._skippers = self._make_skippers(skips, titles, drawn)
        self._is_single = ~few & ~self._is_stored
        self._is_single.reshape(2, -1)[:, list(self._skippers)] = True
        self._halves: BoundedCache[tuple[int, int, int], Halves] = BoundedCache(_HALVES_BYTES)
        self._layouts: BoundedCache[tuple[int, int], Spread | StoredLayout] = BoundedCache(
            _LAYOUT_BYTES
        )
        self._lock = threading.Lock()

    def drawn(self, lane: int, datasets: _Array, draws: _Array) -> tuple[_Array, _Array]:
        """Return the sample ids of draws, and the pass that each draw belongs to.

        With a fixed choice the pass is always 0, because all passes have the same samples.

        Args:
            lane: The lane.
            datasets: (n,) int64, the dataset of each draw; it must have samples.
            draws: (n,) int64, the number of each draw among the lane's draws of its dataset.

        Returns:
            Two (n,) int64 arrays. Sample ids are ids in the mixture, where the ids of all datasets
            follow one another.
        """
        # NumPy sorts 16-bit integers by radix, and sorted numbers are grouped by comparing
        # neighbours.
        narrow = np.uint16 if len(self._keys) <= 1 << 16 else np.uint32
        order = np.argsort(datasets.astype(narrow), kind="stable")
        sample_ids, passes = np.empty((2, len(datasets)), np.int64)
        sample_ids[order], passes[order] = self._sorted(lane, datasets[order], draws[order])
        return sample_ids, passes

    def runs_of(self, sample_ids: _Array) -> tuple[_Array, _Array]:
        """Return the first id of each sample's run, and the one after its last, in the mixture.

        With a fixed choice each sample is a run of its own, because its neighbours are not read.
        """
        firsts, stops = sample_ids.copy(), sample_ids + 1
        if self._choice is not None:
            return firsts, stops
        owners = np.searchsorted(self._first_ids, sample_ids, side="right") - 1
        for dataset in np.unique(owners).tolist():
            (members,) = np.nonzero(owners == dataset)
            start = int(self._first_ids[dataset])
            first, stop = self._runs_of(dataset).around(sample_ids[members] - start)
            firsts[members], stops[members] = first + start, stop + start
        return firsts, stops

    def substitute(self, number: int, damaged: Sequence[int]) -> int:
        """Return the substitute for a damaged sample.

        Args:
            number: The pass whose key draws the substitute.
            damaged: Ids in the mixture: the sample, followed by earlier substitutes.

        Raises:
            BadArgumentError: No other sample is drawn from the dataset.
        """
        dataset = int(np.searchsorted(self._first_ids, damaged[0], side="right")) - 1
        start = self._first_ids[dataset]
        ids = np.array(damaged, np.int64) - start
        if self._choice is not None:
            ids = self._choice.numbers_of(dataset, ids)
        skips = self._skippers[dataset].skips if dataset in self._skippers else None
        skipper = skipper_of(skips, self._runs_of(dataset), ids.tolist())
        found = skipper.fill(self._skip_key(dataset, number), ids[:1])
        if self._choice is not None:
            found = self._choice.sample_ids(np.array([dataset]), found)
        return int(found[0] + start)

    def draws_of(
        self, dataset: int, samples: SamplesOfPass, lane: int, draws: tuple[int, int]
    ) -> _Array:
        """Return which draws of a dataset in a lane give certain samples, also as substitutes.

        Args:
            dataset: The dataset.
            samples: The samples to look for.
            lane: The lane.
            draws: The first draw to look at, and the one after the last.

        Returns:
            (n,) int64, rising.
        """
        start, stop = draws
        _, lane_lengths = self._lane_ranges(lane)
        length = int(lane_lengths[dataset])
        found = [np.zeros(0, np.int64)]
        if start >= stop or not length:
            return found[0]
        for number_of_pass in range(start // length, (stop - 1) // length + 1):
            own = samples(0 if self._is_fixed[dataset] else number_of_pass)
            if self._choice is not None:
                own = self._choice.numbers_of(dataset, own)
            shuffled = number_of_pass if self._spec.shuffle else 0
            for number in own[own >= 0].tolist():
                places = self._places(lane, dataset, shuffled, number)
                found.append(places + number_of_pass * length)
        return _within(np.sort(np.concatenate(found)), start, stop)

    def _make_skippers(
        self, skips: Skips | None, titles: Sequence[str], drawn: NDArray[np.bool_]
    ) -> dict[int, Skipper]:
        if skips is None:
            return {}
        owners = np.searchsorted(self._first_ids, skips.sample_ids, side="right") - 1
        skippers = {}
        for dataset in np.unique(owners).tolist():
            ids = skips.sample_ids[owners == dataset] - self._first_ids[dataset]
            if self._choice is not None:
                numbers = self._choice.numbers_of(dataset, ids)
                ids = numbers[numbers >= 0]
            if len(ids) and drawn[dataset]:
                skippers[dataset] = Skipper(
                    Skips(ids), self._runs_of(dataset), title=f"dataset {titles[dataset]}"
                )
        return skippers

    def _lane_ranges(self, lane: int) -> tuple[_Array, _Array]:
        starts = np.diff(self._split.starts(lane, self._used_starts))
        lengths = np.diff(self._split.offsets(lane, self._used_starts))
        # A lane that holds no sample of a small dataset may use all of them.
        nothing = lengths == 0
        starts[nothing] = 0
        lengths[nothing] = self._counts[nothing]
        return starts, lengths

    def _sorted(self, lane: int, datasets: _Array, draws: _Array) -> tuple[_Array, _Array]:
        lane_starts, lane_lengths = self._lane_ranges(lane)
        own_passes, places = np.divmod(draws, lane_lengths[datasets])
        passes = own_passes if self._spec.shuffle else np.zeros_like(own_passes)
        opens = np.ones(len(datasets), np.bool_)
        opens[1:] = (datasets[1:] != datasets[:-1]) | (passes[1:] != passes[:-1])
        firsts = np.flatnonzero(opens)
        drawn = _LaneDraws(datasets, np.cumsum(opens) - 1, places, firsts, passes[firsts])
        sample_ids = self._dealt(lane, drawn) if self._spec.shuffle else places
        sample_ids += lane_starts[datasets]
        self._read(drawn, sample_ids)
        if self._choice is not None:
            sample_ids = self._choice.sample_ids(datasets, sample_ids)
        sample_ids += self._first_ids[datasets]
        own_passes[self._is_fixed[datasets]] = 0
        return sample_ids, own_passes

    def _dealt(self, lane: int, drawn: _LaneDraws) -> _Array:
        # Turn places in the steps of lanes into offsets in their layouts.
        dealings, groups = self._dealing(lane), drawn.groups
        keys = derive_each(self._keys[drawn.datasets[drawn.firsts]], drawn.passes)
        owners = self._owners(drawn.datasets, drawn.passes[groups])
        steps = dealings.steps_of(owners, drawn.places)
        slots = drawn.places - dealings.step_start(owners, steps)
        step_keys = derive_each(derive_each(keys, Stream.STEP, lane)[groups], steps)
        slots = _permuted(step_keys, dealings.step_length(owners, steps), slots)
        deal_keys = derive_each(keys, Stream.DEAL, lane)
        second = second_keys_of(deal_keys)[groups]
        offsets = dealings.offsets(deal_keys[groups], second, owners, steps, slots)
        # Where halves of runs come, which is a small part of a pass.
        past = offsets - dealings.opening[owners]
        (inside,) = np.nonzero((past >= 0) & (past < 2 * dealings.opening_samples[owners]))
        for group in np.unique(groups[inside]).tolist():
            dataset = int(drawn.datasets[drawn.firsts[group]])
            some = inside[groups[inside] == group]
            halves = self._opening(lane, dataset, int(drawn.passes[group]))
            offsets[some] += halves.offsets_at(past[some]) - past[some]
        return offsets

    def _read(self, drawn: _LaneDraws, offsets: _Array) -> None:
        # Replace offsets in the layouts of passes by sample ids in their datasets.
        owners = drawn.datasets[drawn.firsts]
        kinds = self._owners(owners, drawn.passes)
        small = self._is_small[kinds]
        if small.any():
            chosen = small[drawn.groups]
            keys = derive_each(self._keys[owners], drawn.passes)

            def make(some: _Array) -> Passes:
                return self._maker.make(owners[small][some], keys[small][some])

            with self._lock:
                passes, slots = self._passes.find(keys[small], make)
            of_group = np.cumsum(small) - 1
            slots = slots[of_group[drawn.groups[chosen]]]
            offsets[chosen] = passes.sample_ids(slots, offsets[chosen])
        bounds = [*drawn.firsts.tolist(), len(offsets)]
        for group in np.flatnonzero(self._is_single[kinds]).tolist():
            dataset, number = int(owners[group]), int(drawn.passes[group])
            own = slice(bounds[group], bounds[group + 1])
            if not small[group]:
                offsets[own] = self._layout(dataset, number).sample_ids(offsets[own])
            if dataset in self._skippers:
                key = self._skip_key(dataset, number)
                offsets[own] = self._skippers[dataset].fill(key, offsets[own])

    def _places(self, lane: int, dataset: int, number: int, own: int) -> _Array:
        # Return the places of a lane's pass that hold a sample.
        samples = np.array([own])
        skipper = self._skippers.get(dataset)
        if skipper is not None:
            if skipper.skips.contains(samples)[0]:
                return samples[:0]
            replaced = skipper.replaced_by(self._skip_key(dataset, number), own)
            samples = np.append(samples, replaced)
        lane_starts, lane_lengths = self._lane_ranges(lane)
        offsets = self._layout(dataset, number).offsets(samples) - int(lane_starts[dataset])
        offsets = offsets[(offsets >= 0) & (offsets < int(lane_lengths[dataset]))]
        if not self._spec.shuffle or not len(offsets):
            return offsets
        dealings, owner = self._dealing(lane), int(self._owners(dataset, number))
        past = offsets - dealings.opening[owner]
        inside = (past >= 0) & (past < 2 * dealings.opening_samples[owner])
        if inside.any():
            halves = self._opening(lane, dataset, number)
            offsets[inside] += halves.places_of(past[inside]) - past[inside]
        pass_key = derive(int(self._keys[dataset]), number)
        deal_key = np.array([derive(pass_key, Stream.DEAL, lane)], np.uint64)
        steps, slots = dealings.slots(deal_key, second_keys_of(deal_key), owner, offsets)
        lengths = dealings.step_length(owner, steps)
        step_keys = [derive(pass_key, Stream.STEP, lane, step) for step in steps.tolist()]
        places = _unpermuted(np.array(step_keys, np.uint64), lengths, slots)
        places += dealings.step_start(owner, steps)
        return places

    def _runs_of(self, dataset: int) -> Runs:
        if dataset not in self._opened:
            self._opened[dataset] = self._runs.of(dataset)
        return self._opened[dataset]

    def _skip_key(self, dataset: int, number: int) -> int:
        return derive(int(self._keys[dataset]), number, Stream.SKIPS)

    def _owners(self, datasets: _Array | int, passes: _Array | int) -> _Array:
        # Only first passes may have a ramp.
        return np.asarray(datasets + (np.asarray(passes) == 0) * len(self._keys))

    def _dealing(self, lane: int) -> Dealings:
        if lane not in self._dealings:
            lengths, memories = np.tile([self._lane_ranges(lane)[1], self.memories], 2)
            ramps = np.concatenate([np.zeros_like(self._first_samples), self._first_samples])
            self._dealings[lane] = Dealings(lengths, memories, ramps)
        return self._dealings[lane]

    def _opening(self, lane: int, dataset: int, number: int) -> Halves:
        def make() -> Halves:
            dealings, owner = self._dealing(lane), int(self._owners(dataset, number))
            first = int(dealings.opening[owner] + self._lane_ranges(lane)[0][dataset])
            stop = first + 2 * int(dealings.opening_samples[owner])
            return halve(self._layout(dataset, number), self._runs_of(dataset), first, stop)

        return self._halves.get_once((lane, dataset, number), make)

    def _layout(self, dataset: int, number: int) -> Spread | StoredLayout:
        if self._is_stored[self._owners(dataset, number)]:
            return StoredLayout()

        def make() -> Spread:
            runs = self._runs_of(dataset)
            return Spread(runs, make_pieces(runs), derive(int(self._keys[dataset]), number))

        return self._layouts.get_once((dataset, number), make)


def _within(draws: _Array, start: int, stop: int) -> _Array:
    return draws[(start <= draws) & (draws < stop)]


def _permuted(keys: NDArray[np.uint64], counts: _Array, places: _Array) -> _Array:
    permuted = np.empty_like(places)
    large = counts > SORT_LIMIT
    if large.any():
        permuted[large] = permute(keys[large], counts[large], places[large])
    small = ~large
    if small.any():
        own, first, owners = np.unique(keys[small], return_index=True, return_inverse=True)
        lengths = counts[small][first]
        whole = permutations(own, lengths)
        permuted[small] = whole[starts_of(lengths)[owners] + places[small]]
    return permuted


def _unpermuted(keys: NDArray[np.uint64], counts: _Array, numbers: _Array) -> _Array:
    places = np.empty_like(numbers)
    large = counts > SORT_LIMIT
    places[large] = unpermute(keys[large], counts[large], numbers[large])
    for row in np.flatnonzero(~large).tolist():
        whole = permutations(keys[row : row + 1], counts[row : row + 1])
        places[row] = np.flatnonzero(whole == numbers[row])[0]
    return places
