"""Members: from draws of a mixture's datasets to sample ids, for all datasets at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.order._bands import BandPlaces, Bands, LanePlaces, find_bands, find_lanes, make_bands
from headrace.order._choice import FixedChoice
from headrace.order._hash import Stream, derive, derive_each
from headrace.order._lanes import LaneSplit
from headrace.order._layout import Layouts, shuffled_layouts, stored_layouts
from headrace.order._open import OpenTable
from headrace.order._parts import make_parts
from headrace.order._permutation import permutations, permute
from headrace.order._segments import starts_of
from headrace.order._shape import MIXTURE
from headrace.order._skips import Skips
from headrace.order._spec import OrderSpec, ShardTable
from headrace.order._substitutes import Substitutes

# Small, because adding to a table copies it.
_LAYOUT_BYTES: Final = 4 << 20
_BAND_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Draws:
    """Draws of one lane, sorted by dataset; a group is a stretch of one pass of one dataset."""

    lane: int
    datasets: NDArray[np.int64]
    places: NDArray[np.int64]
    pass_keys: NDArray[np.uint64]
    groups: NDArray[np.int64]
    firsts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Where draws lie: each at a place of something that is permuted as a whole."""

    table: Layouts | Bands
    starts: NDArray[np.int64]
    places: NDArray[np.int64]
    counts: NDArray[np.int64]
    keys: NDArray[np.uint64] | None

    def read(
        self, chosen: NDArray[np.int64] | slice, places: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the sample ids in their datasets of some draws, at other places if wanted."""
        if self.keys is not None:
            places = _permuted(self.keys[chosen], self.counts[chosen], places)
        return self.table.sample_ids(self.starts[chosen] + places)


class Members:
    """The orders of a mixture's datasets; safe to call from several threads.

    Draw j of a dataset in a lane is place j mod n of pass j div n, n being the samples that the
    lane has of the dataset. A pass is shuffled as an epoch of one dataset is, with the constants
    of `headrace.order._shape.MIXTURE`.

    Args:
        spec: The options, for all datasets alike.
        tables: The datasets' shards.
        first_ids: (datasets + 1,) int64, samples of the datasets before each.
        choice: Which of their samples are used, if not all.
        skips: Samples to leave out, by their ids in the mixture.
    """

    def __init__(
        self,
        spec: OrderSpec,
        tables: Sequence[ShardTable],
        *,
        first_ids: NDArray[np.int64],
        choice: FixedChoice | None = None,
        skips: Skips | None = None,
    ) -> None:
        self._spec = spec
        self._choice = choice
        self._skips = skips
        self._substitutes = Substitutes(skips or Skips([]))
        self._first_ids = first_ids
        used = tables if choice is None else choice.tables
        self._parts = make_parts(spec, used, MIXTURE)
        self._used_starts = starts_of(self._parts.sample_counts)[self._parts.starts]
        self._split = LaneSplit(int(self._used_starts[-1]), spec.lanes, spec.unit)
        self._keys = dataset_keys(spec.seed, len(tables))
        self._layouts: OpenTable[Layouts] = OpenTable(_LAYOUT_BYTES)
        self._bands: OpenTable[Bands] = OpenTable(_BAND_BYTES)
        self._lock = threading.Lock()

    def sample_ids(
        self, lane: int, datasets: NDArray[np.int64], draws: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the sample ids of draws.

        Args:
            lane: The lane.
            datasets: (n,) int64, the dataset of each draw; it must have samples.
            draws: (n,) int64, the number of each draw among those of its dataset in this lane.

        Returns:
            (n,) int64, sample ids in the mixture: those of all datasets laid end to end.
        """
        # Sorting 16-bit integers is a radix sort, and what is sorted can be grouped by comparing
        # neighbours.
        narrow = np.uint16 if len(self._keys) <= 1 << 16 else np.uint32
        order = np.argsort(datasets.astype(narrow), kind="stable")
        sample_ids = np.empty(len(datasets), np.int64)
        with self._lock:
            sample_ids[order] = self._sorted_ids(lane, datasets[order], draws[order])
        return sample_ids

    def _lane_ranges(self, lane: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts = np.diff(self._split.starts(lane, self._used_starts))
        lengths = np.diff(self._split.offsets(lane, self._used_starts))
        # A lane that has nothing of a small dataset may use all of it.
        nothing = lengths == 0
        starts[nothing] = 0
        lengths[nothing] = np.diff(self._used_starts)[nothing]
        return starts, lengths

    def _sorted_ids(
        self, lane: int, datasets: NDArray[np.int64], draws: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        found = self._find(lane, datasets, draws)

        def read(chosen: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
            return self._mixture_ids(datasets[chosen], found.read(chosen, places))

        sample_ids = self._mixture_ids(datasets, found.read(slice(None), found.places))
        if self._skips is None:
            return sample_ids
        # Without a permutation a dataset's samples in a lane are one window, of any pass.
        windows = (datasets << 20 | lane).view(np.uint64) if found.keys is None else found.keys
        lost = self._substitutes.fill(
            sample_ids, found.places, found.counts, windows=windows, read=read
        )
        first, stop = self._first_ids[datasets[lost]], self._first_ids[datasets[lost] + 1]
        sample_ids[lost] = self._skips.next_kept(sample_ids[lost], first, stop)
        return sample_ids

    def _mixture_ids(
        self, datasets: NDArray[np.int64], sample_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        if self._choice is not None:
            sample_ids = self._choice.sample_ids(datasets, sample_ids)
        return sample_ids + self._first_ids[datasets]

    def _find(self, lane: int, datasets: NDArray[np.int64], draws: NDArray[np.int64]) -> _Found:
        lane_starts, lane_lengths = self._lane_ranges(lane)
        passes, places = np.divmod(draws, lane_lengths[datasets])
        if not self._spec.shuffle:
            passes[:] = 0
        opens = np.ones(len(datasets), np.bool_)
        opens[1:] = (datasets[1:] != datasets[:-1]) | (passes[1:] != passes[:-1])
        firsts = np.flatnonzero(opens)
        groups = np.cumsum(opens) - 1
        pass_keys = derive_each(self._keys[datasets[firsts]], passes[firsts])
        drawn = _Draws(lane, datasets, places, pass_keys, groups, firsts)
        layouts, slots = self._open_layouts(drawn)
        starts = layouts.starts[slots] + lane_starts[datasets[firsts]]
        lengths = lane_lengths[datasets[firsts]]
        if self._spec.shuffle and self._spec.window:
            lanes = find_lanes(layouts, slots, starts, starts + lengths)
            return self._windowed(drawn, layouts, lanes)
        keys = derive_each(pass_keys, Stream.LANE, lane)[groups] if self._spec.shuffle else None
        return _Found(layouts, starts[groups], places, lengths[groups], keys)

    def _open_layouts(self, drawn: _Draws) -> tuple[Layouts, NDArray[np.int64]]:
        datasets = drawn.datasets[drawn.firsts]
        keys = derive_each(drawn.pass_keys, Stream.PARTS)

        def make(chosen: NDArray[np.int64]) -> Layouts:
            if self._spec.shuffle:
                return shuffled_layouts(self._parts, datasets[chosen], keys[chosen])
            return stored_layouts(self._parts, datasets[chosen])

        return self._layouts.find(keys, make)

    def _windowed(self, drawn: _Draws, layouts: Layouts, lanes: LanePlaces) -> _Found:
        offsets = lanes.starts[drawn.groups] + drawn.places
        places = find_bands(layouts, lanes, drawn.groups, offsets)
        opens = np.ones(len(offsets), np.bool_)
        opens[1:] = (drawn.groups[1:] != drawn.groups[:-1]) | (
            places.indices[1:] != places.indices[:-1]
        )
        firsts = np.flatnonzero(opens)
        of_band = np.cumsum(opens) - 1
        pass_keys = drawn.pass_keys[drawn.groups[firsts]]
        first_places = places.take(firsts)
        bands, slots = self._open_bands(drawn.lane, layouts, first_places, pass_keys)
        offsets += (bands.starts[slots] - first_places.starts)[of_band]
        windows = bands.windows(offsets, slots[of_band])
        starts = bands.window_starts[windows]
        window_keys = derive_each(pass_keys, Stream.WINDOW, drawn.lane, first_places.indices)
        keys = derive_each(window_keys[of_band], windows - bands.first_windows[slots][of_band])
        counts = bands.window_starts[windows + 1] - starts
        return _Found(bands, starts, offsets - starts, counts, keys)

    def _open_bands(
        self,
        lane: int,
        layouts: Layouts,
        places: BandPlaces,
        pass_keys: NDArray[np.uint64],
    ) -> tuple[Bands, NDArray[np.int64]]:
        keys = derive_each(pass_keys, Stream.RUNS, lane, places.indices)

        def make(chosen: NDArray[np.int64]) -> Bands:
            return make_bands(
                self._spec, MIXTURE, layouts, places.take(chosen), run_keys=keys[chosen]
            )

        return self._bands.find(keys, make)


def dataset_keys(seed: int, datasets: int) -> NDArray[np.uint64]:
    """Return the key of each dataset of a mixture: (datasets,) uint64."""
    root = np.full(datasets, derive(0, seed), np.uint64)
    return derive_each(root, Stream.DATASET, np.arange(datasets))


def _permuted(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.int64]:
    permuted = np.empty_like(places)
    small = counts <= MIXTURE.sort_limit
    large = ~small
    if large.any():
        permuted[large] = permute(keys[large], counts[large], places[large])
    if small.any():
        own, first, owners = np.unique(keys[small], return_index=True, return_inverse=True)
        lengths = counts[small][first]
        whole = permutations(own, lengths)
        permuted[small] = whole[starts_of(lengths)[owners] + places[small]]
    return permuted
