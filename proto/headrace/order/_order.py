"""The order of one dataset: from positions of an epoch to sample ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, PositionPastEndError
from headrace.order._bands import BandPlaces, Bands, find_bands, find_lanes, make_bands
from headrace.order._cache import BoundedCache
from headrace.order._hash import Stream, derive, derive_each
from headrace.order._lanes import LaneSplit
from headrace.order._layout import Layouts, shuffled_layouts, stored_layouts
from headrace.order._parts import make_parts
from headrace.order._permutation import (
    NETWORK_LIMIT,
    Network,
    Walk,
    permutation,
    permutations,
    permute,
)
from headrace.order._segments import spread, starts_of
from headrace.order._shape import ONE_DATASET
from headrace.order._skips import Skips
from headrace.order._spec import OrderSpec, ShardTable
from headrace.order._substitutes import Read, Substitutes, check_some_kept

# Two epochs of 10**6 shards, some dozen bands and windows: what 8 lanes need over a border.
_LAYOUT_BYTES: Final = 24 << 20
_BAND_BYTES: Final = 8 << 20
_CHUNK_BYTES: Final = 16 << 20
# Windows too large to sort are permuted in chunks, shared by all ranks of a server: 0.5 ms of work
# on arrays that fit the second cache, so many that the calls do not show.
_CHUNK_SAMPLES: Final = 16384
# Two windows of the default size, in storage order; of larger windows each sample is searched for.
_WINDOW_BYTES: Final = 16 << 20
_WINDOW_SAMPLES: Final = 1 << 21
_NETWORK_BYTES: Final = 2 << 20
# Windows that hold fewer samples than this on average are worked out this many at a time: one alone
# takes some 100 us of calls.
_FEW_SAMPLES: Final = 32
_WINDOWS_TOGETHER: Final = 4096
# Lanes whose last window is remembered.
_MAX_RECENT: Final = 64
_EPOCH_LIMIT: Final = 1 << 62

_Lookup: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """One window of a lane.

    Attributes:
        epoch: Its epoch.
        start: Its first place in the lane.
        count: How many samples it has.
        words: Derive its key.
        lookup: Gives the sample ids at places of it, before it is permuted.
        band: Holds its runs.
        index: Its number in the band.
    """

    epoch: int
    start: int
    count: int
    words: tuple[int, ...]
    lookup: _Lookup
    band: Bands
    index: int

    def holds(self, epoch: int, place: int) -> bool:
        return self.epoch == epoch and 0 <= place - self.start < self.count


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One window of a lane: all that tells which samples are at its places.

    Attributes:
        start: Its first place in the lane.
        count: How many samples it has.
        first_ids: (runs,) int64: the sample id of each run's first sample. Before it is permuted,
            a window holds its runs one after the other.
        lengths: (runs,) int64: samples of each run.
        key: Permutes it.
        second_key: What draws add to the key half-way.
        is_small: Whether it is permuted by sorting, and else by a network.
    """

    start: int
    count: int
    first_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    key: int
    second_key: int
    is_small: bool


class Order:
    """The order of one dataset; safe to call from several threads.

    Opening an order reads the shard table once. An epoch is opened by the first call for it and a
    window by the first position in it; both stay in caches bounded in bytes, so the ranks of one
    server share them.

    Args:
        spec: The options.
        table: The dataset's shards.
        skips: Samples to leave out.
        walk: Does what `walk_tables` does, if something does it faster.

    Raises:
        BadArgumentError: If the window is too small for the dataset, or all of it is skipped.
    """

    def __init__(
        self,
        spec: OrderSpec,
        table: ShardTable,
        *,
        skips: Skips | None = None,
        walk: Walk | None = None,
    ) -> None:
        self.spec: Final = spec
        if skips is not None:
            check_some_kept(skips, 0, table.sample_count, title="the dataset")
        self._skips = skips
        self._substitutes = Substitutes(skips or Skips([]))
        self._walk = walk
        self._unskipped = self if skips is None else Order(spec, table, walk=walk)
        self.sample_count: Final = table.sample_count
        self._root_key = derive(0, spec.seed)
        self._parts = make_parts(spec, [table], ONE_DATASET)
        self._split = LaneSplit(self.sample_count, spec.lanes, spec.unit)
        self._is_fine = _is_fine(spec, table)
        self._layouts: BoundedCache[int, Layouts] = BoundedCache(_LAYOUT_BYTES)
        self._bands: BoundedCache[tuple[int, int, int], Bands] = BoundedCache(_BAND_BYTES)
        self._chunks: BoundedCache[tuple[int, ...], NDArray[np.int64]] = BoundedCache(_CHUNK_BYTES)
        self._stored: BoundedCache[tuple[int, ...], NDArray[np.int64]] = BoundedCache(_WINDOW_BYTES)
        self._networks: BoundedCache[tuple[int, ...], Network] = BoundedCache(_NETWORK_BYTES)
        self._recent: dict[int, _Window] = {}

    def sample_ids(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at the positions [start, stop) of an epoch.

        Args:
            epoch: In [0, 2**62).
            start: First position, >= 0.
            stop: Position after the last, in [`start`, `sample_count`].

        Returns:
            (stop - start,) int64, owned by the caller.

        Raises:
            BadArgumentError: If the epoch or the range is none.
            PositionPastEndError: If the range passes the end of the epoch.
        """
        check_positions(epoch, start, stop, sample_count=self.sample_count)
        if self.spec.lanes == 1:
            return self.lane_sample_ids(epoch, 0, start, stop)
        sample_ids = np.empty(stop - start, np.int64)
        lanes = self._split.lane_of(np.arange(start, stop))
        for lane in np.unique(lanes).tolist():
            first, end = self._split.offset(lane, start), self._split.offset(lane, stop)
            sample_ids[lanes == lane] = self.lane_sample_ids(epoch, lane, first, end)
        return sample_ids

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return at which of the positions [start, stop) a substitute stands for a skipped sample.

        Args and errors are those of `sample_ids`.

        Returns:
            (stop - start,) bool.
        """
        if self._skips is None:
            check_positions(epoch, start, stop, sample_count=self.sample_count)
            return np.zeros(stop - start, np.bool_)
        return self._skips.contains(self._unskipped.sample_ids(epoch, start, stop))

    def stretches(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Cut the positions [start, stop) where one lane gives way to another.

        Returns:
            In the order of positions: a lane, and a range of places in it.
        """
        if self.spec.lanes == 1:
            return [(0, start, stop)] if start < stop else []
        found = []
        while start < stop:
            lane, place, rest = self._split.place(start)
            end = min(stop, start + rest)
            found.append((lane, place, place + end - start))
            start = end
        return found

    def window(self, epoch: int, lane: int, place: int) -> Window | None:
        """Return the window that holds a place of a lane, for who reads its places alone.

        Args:
            epoch: The epoch.
            lane: In [0, `spec.lanes`).
            place: In [0, `lane_length(lane)`).

        Returns:
            The window; None where only `sample_ids` will do: without windows, with windows of a
            few samples, with skips, or if the window is larger than `NETWORK_LIMIT`.
        """
        if self._skips is not None or not (self.spec.shuffle and self.spec.window):
            return None
        if self._is_fine:
            return None
        found = self._find_window(epoch, lane, place)
        if found.count > NETWORK_LIMIT:
            return None
        key = derive(self._root_key, *found.words)
        first_ids, lengths = found.band.window_runs(found.index)
        return Window(
            start=found.start,
            count=found.count,
            first_ids=first_ids,
            lengths=lengths,
            key=key,
            second_key=derive(key, Stream.SECOND),
            is_small=found.count <= ONE_DATASET.sort_limit,
        )

    def lane_length(self, lane: int) -> int:
        """Return how many samples a lane holds."""
        return self._split.length(lane)

    def lane_sample_ids(self, epoch: int, lane: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at the places [start, stop) of one lane.

        Args:
            epoch: The epoch.
            lane: In [0, `spec.lanes`).
            start: First place in the lane.
            stop: Place after the last, at most `lane_length(lane)`.

        Returns:
            (stop - start,) int64, owned by the caller.
        """
        windowed = self.spec.shuffle and self.spec.window
        read = self._windowed if windowed else self._unwindowed
        pieces = [np.empty(0, np.int64)]
        while start < stop:
            pieces.append(read(epoch, lane, start)[: stop - start])
            start += len(pieces[-1])
        return np.concatenate(pieces)

    def _windowed(self, epoch: int, lane: int, start: int) -> NDArray[np.int64]:
        # From one place of the lane on, as far as one cached chunk reaches.
        window = self._recent.get(lane)
        if window is None or not window.holds(epoch, start):
            window = self._find_window(epoch, lane, start)
            if len(self._recent) >= _MAX_RECENT:
                self._recent.clear()
            self._recent[lane] = window
        if self._is_fine:
            first, stop = _neighbours(window)
            if stop > first:
                return self._together(window, first, stop)[start - window.start :]
        return self._chunk(
            window.words, window.lookup, count=window.count, start=start - window.start
        )

    def _together(self, window: _Window, first: int, stop: int) -> NDArray[np.int64]:
        # From the start of a window on, up to the last of those that are worked out with it.
        band = window.band
        counts = np.diff(band.window_starts[first : stop + 1])
        band_words = window.words[:-1]

        def make() -> NDArray[np.int64]:
            band_key = np.full(len(counts), derive(self._root_key, *band_words), np.uint64)
            keys = derive_each(band_key, np.arange(first, stop))
            starts = np.repeat(band.window_starts[first:stop], counts)
            sample_ids = band.sample_ids(starts + permutations(keys, counts))
            if self._skips is None:
                return sample_ids
            return self._substitute_together(sample_ids, counts, keys)

        words = (*band_words, -1, first)
        before = int(band.window_starts[window.index] - band.window_starts[first])
        return self._chunks.get(words, make)[before:]

    def _substitute_together(
        self, sample_ids: NDArray[np.int64], counts: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        owners, places = spread(counts)
        before, starts = sample_ids.copy(), starts_of(counts)[owners]
        return self._replace_skipped(
            sample_ids,
            places,
            counts[owners],
            keys[owners],
            lambda chosen, walked: before[starts[chosen] + walked],
        )

    def _find_window(self, epoch: int, lane: int, start: int) -> _Window:
        offset = self._split.start(lane) + start
        place = self._find_band(epoch, lane, offset)
        index = int(place.indices[0])
        band = self._bands.get((epoch, lane, index), lambda: self._make_band(epoch, lane, place))
        offset -= int(place.starts[0])
        window = int(band.windows(np.array([offset]), np.zeros(1, np.int64))[0])
        first, end = band.window_starts[window : window + 2].tolist()
        words = (epoch, Stream.WINDOW, lane, index, window)

        def lookup(places: NDArray[np.int64]) -> NDArray[np.int64]:
            if len(places) == end - first:
                return band.window_ids(window)[places]
            if end - first > _WINDOW_SAMPLES:
                return band.sample_ids(first + places)
            stored = self._stored.get(words, lambda: band.window_ids(window))
            return np.take(stored, places, mode="clip")

        lane_start = start - (offset - first)
        return _Window(epoch, lane_start, end - first, words, lookup, band, window)

    def _unwindowed(self, epoch: int, lane: int, start: int) -> NDArray[np.int64]:
        layout = self._layout(epoch)
        first = self._split.start(lane)

        def lookup(places: NDArray[np.int64]) -> NDArray[np.int64]:
            return layout.sample_ids(first + places)

        words = (epoch if self.spec.shuffle else 0, Stream.LANE, lane)
        return self._chunk(words, lookup, count=self.lane_length(lane), start=start)

    def _chunk(
        self, words: tuple[int, ...], lookup: _Lookup, *, count: int, start: int
    ) -> NDArray[np.int64]:
        length = count if count <= ONE_DATASET.sort_limit else _CHUNK_SAMPLES
        first = start - start % length

        def make() -> NDArray[np.int64]:
            places = np.arange(first, min(first + length, count))
            permuted = self._permuter(words, count)
            sample_ids = lookup(permuted(places))
            if self._skips is None:
                return sample_ids
            key = np.full(len(places), derive(self._root_key, *words), np.uint64)
            return self._replace_skipped(
                sample_ids,
                places,
                np.full(len(places), count),
                key,
                lambda _, walked: lookup(permuted(walked)),
            )

        return self._chunks.get((*words, first), make)[start - first :]

    def _permuter(self, words: tuple[int, ...], count: int) -> _Lookup:
        if not self.spec.shuffle:
            return lambda places: places
        key = derive(self._root_key, *words)
        if ONE_DATASET.sort_limit < count <= NETWORK_LIMIT:
            return self._networks.get(words, lambda: Network(key, count, walk=self._walk)).at
        if count > NETWORK_LIMIT:
            keys, counts = np.array([key], np.uint64), np.array([count])
            return lambda places: permute(keys, counts, places)
        whole = permutation(key, count)
        return lambda places: whole[places]

    def _replace_skipped(
        self,
        sample_ids: NDArray[np.int64],
        places: NDArray[np.int64],
        counts: NDArray[np.int64],
        keys: NDArray[np.uint64],
        read: Read,
    ) -> NDArray[np.int64]:
        assert self._skips is not None
        lost = self._substitutes.fill(sample_ids, places, counts, windows=keys, read=read)
        stop = np.full(len(lost), self.sample_count)
        sample_ids[lost] = self._skips.next_kept(sample_ids[lost], np.zeros_like(stop), stop)
        return sample_ids

    def _find_band(self, epoch: int, lane: int, offset: int) -> BandPlaces:
        layout = self._layout(epoch)
        only = np.zeros(1, np.int64)
        start = self._split.start(lane)
        starts, stops = np.array([start]), np.array([start + self.lane_length(lane)])
        lanes = find_lanes(layout, only, starts, stops)
        return find_bands(layout, lanes, only, np.array([offset]))

    def _make_band(self, epoch: int, lane: int, place: BandPlaces) -> Bands:
        run_key = derive(self._root_key, epoch, Stream.RUNS, lane, int(place.indices[0]))
        return make_bands(
            self.spec,
            ONE_DATASET,
            self._layout(epoch),
            place,
            run_keys=np.array([run_key], np.uint64),
            ramp_key=derive(self._root_key, epoch, Stream.RAMP, lane),
        )

    def _layout(self, epoch: int) -> Layouts:
        dataset = np.zeros(1, np.int64)
        if not self.spec.shuffle:
            return self._layouts.get(0, lambda: stored_layouts(self._parts, dataset))
        key = np.array([derive(self._root_key, epoch, Stream.PARTS)], np.uint64)
        return self._layouts.get(epoch, lambda: shuffled_layouts(self._parts, dataset, key))


def _neighbours(window: _Window) -> tuple[int, int]:
    # The windows of its band that are worked out with a window; none, if one of them is large after
    # all, because it is made of a shard that cannot be cut.
    starts = window.band.window_starts
    first = window.index - window.index % _WINDOWS_TOGETHER
    stop = min(first + _WINDOWS_TOGETHER, len(starts) - 1)
    if np.diff(starts[first : stop + 1]).max() > ONE_DATASET.sort_limit:
        return first, first
    return first, stop


def _is_fine(spec: OrderSpec, table: ShardTable) -> bool:
    # Whether windows hold a few samples in the mean.
    if not (spec.shuffle and spec.window):
        return False
    windows = table.sample_count / spec.window
    if spec.window_bytes:
        windows = max(windows, float(table.raw_bytes.sum()) / spec.window_bytes)
    return table.sample_count < _FEW_SAMPLES * windows


def check_positions(epoch: int, start: int, stop: int, *, sample_count: int) -> None:
    """Refuse what are no positions of an epoch.

    Raises:
        BadArgumentError: If the epoch or the range is none.
        PositionPastEndError: If the range passes the end of the epoch.
    """
    if not 0 <= epoch < _EPOCH_LIMIT:
        raise BadArgumentError(f"epoch is {epoch}, must be in [0, 2**62)", field="epoch")
    if not 0 <= start <= stop:
        raise BadArgumentError(
            f"the positions [{start}, {stop}) are no range from 0 up", field="position"
        )
    if stop > sample_count:
        raise PositionPastEndError(
            f"positions up to {stop} were asked for, an epoch has {sample_count} samples",
            position=stop,
            sample_count=sample_count,
        )
