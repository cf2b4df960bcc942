"""Bands: some neighbouring parts of a lane, cut into runs and dealt to windows.

A band is all that has to be worked out to know any of its positions, so its size bounds the time
and the memory of opening a position. Everything here works on several bands at once, because a
batch of a mixture needs one of each of its datasets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.order._layout import Layouts
from headrace.order._parts import WINDOW_COST, window_costs
from headrace.order._permutation import permutations
from headrace.order._ramp import ramp_up
from headrace.order._segments import cut_evenly, spread, starts_of, sums_before, totals
from headrace.order._shape import Shape
from headrace.order._spec import OrderSpec

# 4 MiB is where ranged reads of object stores reach their throughput.
_RUN_BYTES: Final = 4 << 20
# Bounds the memory of a band whatever the window.
_PART_RUNS: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class BandPlaces:
    """Where n bands lie in their layouts.

    Attributes:
        indices: (n,) int64, number of each band in its lane.
        passes: (n,) int64, the pass that each lies in.
        first_places: (n,) int64, place of its first part.
        end_places: (n,) int64, place after its last part.
        starts: (n,) int64, offset of its first sample.
        stops: (n,) int64, offset after its last sample; the lane's borders may cut its first and
            its last part.
    """

    indices: NDArray[np.int64]
    passes: NDArray[np.int64]
    first_places: NDArray[np.int64]
    end_places: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def take(self, chosen: NDArray[np.int64]) -> BandPlaces:
        """Return some of the bands."""
        return BandPlaces(
            self.indices[chosen],
            self.passes[chosen],
            self.first_places[chosen],
            self.end_places[chosen],
            self.starts[chosen],
            self.stops[chosen],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Bands:
    """The runs of bands in their permuted order, and the windows that they fill.

    The bands lie one after the other: offsets count through all of them.

    Attributes:
        starts: (bands + 1,) int64, offset of each band's first sample.
        first_windows: (bands + 1,) int64, each band's first window.
        run_ids: (runs,) int64, sample id of each run's first sample.
        run_starts: (runs + 1,) int64, offset of each run's first sample.
        window_starts: (windows + 1,) int64, offset of each window's first sample.
    """

    starts: NDArray[np.int64]
    first_windows: NDArray[np.int64]
    run_ids: NDArray[np.int64]
    run_starts: NDArray[np.int64]
    window_starts: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.run_ids.nbytes + self.run_starts.nbytes + self.window_starts.nbytes

    def join(self, later: Bands) -> Bands:
        """Return these bands followed by others."""
        offset, window = self.starts[-1], self.first_windows[-1]
        return Bands(
            np.append(self.starts, later.starts[1:] + offset),
            np.append(self.first_windows, later.first_windows[1:] + window),
            np.append(self.run_ids, later.run_ids),
            np.append(self.run_starts, later.run_starts[1:] + offset),
            np.append(self.window_starts, later.window_starts[1:] + offset),
        )

    def windows(self, offsets: NDArray[np.int64], owners: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the window that holds each offset.

        Args:
            offsets: (n,) int64.
            owners: (n,) int64, the band that holds each offset.
        """
        windows = self.first_windows[owners]
        several = np.flatnonzero(self.first_windows[owners + 1] - windows > 1)
        found = np.searchsorted(self.window_starts, offsets[several], side="right")
        windows[several] = found - 1
        return windows

    def sample_ids(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample id at each offset, before windows are permuted."""
        runs = np.searchsorted(self.run_starts, offsets, side="right") - 1
        sample_ids: NDArray[np.int64] = self.run_ids[runs]
        sample_ids += offsets - self.run_starts[runs]
        return sample_ids

    def window_runs(self, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the runs of one window: the first sample id and the samples of each."""
        start, stop = self.window_starts[window : window + 2].tolist()
        first, end = np.searchsorted(self.run_starts, (start, stop)).tolist()
        return self.run_ids[first:end], np.diff(self.run_starts[first : end + 1])

    def window_ids(self, window: int) -> NDArray[np.int64]:
        """Return all sample ids of one window before it is permuted, as `sample_ids` would."""
        first_ids, lengths = self.window_runs(window)
        begins = np.cumsum(lengths) - lengths
        sample_ids: NDArray[np.int64] = np.repeat(first_ids - begins, lengths)
        sample_ids += np.arange(sample_ids.size)
        return sample_ids


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    first_ids: NDArray[np.int64]
    sample_counts: NDArray[np.int64]
    costs: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def take(self, order: NDArray[np.int64]) -> _Runs:
        return _Runs(
            self.first_ids[order], self.sample_counts[order], self.costs[order], self.lengths
        )


@dataclass(frozen=True, slots=True, eq=False)
class LanePlaces:
    """Where n lanes lie in their layouts.

    Attributes:
        passes: (n,) int64, the pass that each lane is of.
        starts: (n,) int64, offset of its first sample.
        stops: (n,) int64, offset after its last sample, greater than `starts`.
        first_places: (n,) int64, place of its first part.
        parts: (n,) int64, how many parts it has, cut ones too.
    """

    passes: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    first_places: NDArray[np.int64]
    parts: NDArray[np.int64]


def find_lanes(
    layouts: Layouts,
    passes: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> LanePlaces:
    """Find the parts of lanes by their first offset and the one after their last."""
    if np.array_equal(stops - starts, np.diff(layouts.starts)[passes]):
        # Lanes that are whole passes need no search.
        first_places = layouts.place_starts[passes]
        parts = layouts.place_starts[passes + 1] - first_places
    else:
        first_places = layouts.places(starts)
        parts = layouts.places(stops - 1) + 1 - first_places
    return LanePlaces(passes, starts, stops, first_places, parts)


def find_bands(
    layouts: Layouts, lanes: LanePlaces, owners: NDArray[np.int64], offsets: NDArray[np.int64]
) -> BandPlaces:
    """Find the bands that hold some offsets.

    Args:
        layouts: The passes.
        lanes: Lanes of them.
        owners: (n,) int64, the lane in `lanes` that each offset lies in.
        offsets: (n,) int64, offsets in `layouts`.
    """
    wanted = layouts.parts.band_parts[layouts.datasets[lanes.passes]]
    # All bands have nearly the same number of parts, so the last is as well mixed as the others.
    bands = np.maximum(1, lanes.parts // wanted)[owners]
    parts, lane_first = lanes.parts[owners], lanes.first_places[owners]
    indices = np.zeros(len(owners), np.int64)
    several = np.flatnonzero(bands > 1)
    places = layouts.places(offsets[several]) - lane_first[several]
    indices[several] = ((places + 1) * bands[several] - 1) // parts[several]
    first_places = lane_first + indices * parts // bands
    end_places = lane_first + (indices + 1) * parts // bands
    return BandPlaces(
        indices=indices,
        passes=lanes.passes[owners],
        first_places=first_places,
        end_places=end_places,
        starts=np.maximum(layouts.begins(first_places), lanes.starts[owners]),
        stops=np.minimum(layouts.ends[end_places - 1], lanes.stops[owners]),
    )


def make_bands(
    spec: OrderSpec,
    shape: Shape,
    layouts: Layouts,
    places: BandPlaces,
    *,
    run_keys: NDArray[np.uint64],
    ramp_key: int = 0,
) -> Bands:
    """Work out bands: cut their parts into runs, permute them and deal them to windows.

    Args:
        spec: A spec that shuffles in windows.
        shape: The constants; those with a ramp take one band at a time.
        layouts: The passes.
        places: Which bands.
        run_keys: (bands,) uint64, permute the runs.
        ramp_key: Rotates the slices of the first window's runs.
    """
    runs = _cut_runs(spec, shape, layouts, places)
    order = permutations(run_keys, runs.lengths)
    order += np.repeat(starts_of(runs.lengths)[:-1], runs.lengths)
    runs = runs.take(order)
    windows = _window_numbers(runs)
    first_ids, sample_counts, lengths = runs.first_ids, runs.sample_counts, runs.lengths
    if shape.ramp and places.indices[0] == 0 and windows[-1] > 0:
        first_ids, sample_counts, windows = ramp_up(first_ids, sample_counts, windows, ramp_key)
        lengths = np.array([len(first_ids)])
    run_starts = starts_of(sample_counts)
    bounds = starts_of(lengths)
    opens = np.ones(len(windows), np.bool_)
    opens[1:] = windows[1:] != windows[:-1]
    opens[bounds[:-1]] = True
    first_runs = np.append(np.flatnonzero(opens), len(windows))
    return Bands(
        starts=run_starts[bounds],
        first_windows=np.searchsorted(first_runs, bounds),
        run_ids=first_ids,
        run_starts=run_starts,
        window_starts=run_starts[first_runs],
    )


def _cut_runs(spec: OrderSpec, shape: Shape, layouts: Layouts, places: BandPlaces) -> _Runs:
    lengths = places.end_places - places.first_places
    first_ids, samples, raw = _band_parts(layouts, places, lengths)
    costs = window_costs(spec, samples, raw)
    by_samples = -(-samples // max(1, spec.window // shape.window_runs))
    pieces = np.minimum(np.maximum(by_samples, -(-raw // _run_bytes(spec, shape))), samples)
    np.minimum(pieces, _PART_RUNS, out=pieces)
    whole = layouts.parts.whole[layouts.datasets[places.passes]]
    pieces[np.repeat(whole, lengths)] = 1
    owners, begin, counts = cut_evenly(samples, pieces)
    shared = -(-costs[owners] * counts // samples[owners])
    return _Runs(
        first_ids=first_ids[owners] + begin,
        sample_counts=counts,
        # What is not cut has its own cost, also where the product passes 64 bits.
        costs=np.where(counts == samples[owners], costs[owners], shared),
        lengths=totals(pieces, lengths),
    )


def _run_bytes(spec: OrderSpec, shape: Shape) -> int:
    if spec.window_bytes == 0:
        return _RUN_BYTES
    return min(_RUN_BYTES, max(1, spec.window_bytes // shape.window_runs))


def _band_parts(
    layouts: Layouts, places: BandPlaces, lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    owners, steps = spread(lengths)
    parts = layouts.order[places.first_places[owners] + steps]
    first_ids = layouts.parts.first_ids[parts]
    samples = layouts.parts.sample_counts[parts]
    raw = layouts.parts.raw_bytes[parts]
    bounds = starts_of(lengths)
    # A lane may begin or end inside a part.
    front = places.starts - layouts.begins(places.first_places)
    first_ids[bounds[:-1]] += front
    _trim(samples, raw, bounds[:-1], front)
    _trim(samples, raw, bounds[1:] - 1, layouts.ends[places.end_places - 1] - places.stops)
    return first_ids, samples, raw


def _trim(
    samples: NDArray[np.int64],
    raw: NDArray[np.int64],
    parts: NDArray[np.int64],
    cuts: NDArray[np.int64],
) -> None:
    whole = samples[parts]
    kept = whole - cuts
    # Rounded up a sample, because raw * kept may pass 64 bits.
    shared = np.minimum(raw[parts], (raw[parts] // whole + 1) * kept)
    raw[parts] = np.where(cuts > 0, shared, raw[parts])
    samples[parts] = kept


def _window_numbers(runs: _Runs) -> NDArray[np.int64]:
    # A band's cost is cut into equal windows, and a run belongs to the one it begins in: so a
    # window passes its limits by one run at most, and none is left over small.
    before = sums_before(runs.costs, runs.lengths)
    cost_totals = totals(runs.costs, runs.lengths)
    windows = -(-cost_totals // WINDOW_COST)
    before *= np.repeat(windows, runs.lengths)
    before //= np.repeat(np.maximum(cost_totals, 1), runs.lengths)
    return before
