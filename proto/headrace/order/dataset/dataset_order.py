"""The order of one dataset: from positions of an epoch to sample ids, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.caches import BoundedCache
from headrace.errors import BadArgumentError
from headrace.order.basics.checks import check_positions
from headrace.order.basics.hash import Stream, derive, second_keys_of
from headrace.order.basics.permutation import (
    NETWORK_LIMIT,
    Network,
    Walk,
    permutations,
    permute,
    unpermute,
)
from headrace.order.basics.segments import spread, starts_of
from headrace.order.dataset.step import Step
from headrace.order.dealing.cohorts import DealtSteps, LaneDeal
from headrace.order.dealing.dealing import Dealings
from headrace.order.dealing.lanes import LaneSplit
from headrace.order.dealing.ramp import first_samples
from headrace.order.samples.runs import Locate, RunPieces, blocks_between, make_pieces, make_runs
from headrace.order.samples.shard_table import ShardTable
from headrace.order.samples.skips import Skipper, Skips, skipper_of
from headrace.order.samples.spec import OrderSpec
from headrace.order.spread.halves import Halves, halve
from headrace.order.spread.lane_layout import LaneLayout
from headrace.order.spread.spread import Spread, StoredLayout

_Array = NDArray[np.int64]

# Larger steps are permuted by a network: to find one sample by sorting, its whole step is sorted.
SORT_LIMIT: Final = 1 << 12
# Small steps are worked out together, and large ones in parts of about this many samples.
_CHUNK_SAMPLES: Final = 1 << 14
_CHUNK_BYTES: Final = 16 << 20
# Bounds the memory for lanes, of which there may be a million.
_MOST_NOTED: Final = 1 << 10
_LAYOUT_BYTES: Final = 96 << 20
_HALVES_BYTES: Final = 8 << 20
_NETWORK_BYTES: Final = 4 << 20
_DEALT_BYTES: Final = 24 << 20


class _Chunk(NamedTuple):
    # The last chunk read from a lane: places [start, stop) of an epoch, and its key in the cache.
    epoch: int
    start: int
    stop: int
    key: tuple[int, int]


class Order:
    """The order of one dataset; safe to call from several threads.

    An epoch is opened by the first call for it. Layouts, and samples near those read last, are
    kept in caches that are bounded in bytes.

    Args:
        spec: The options.
        table: The dataset's shards.
        skips: Samples to leave out; other samples of their runs take their places.
        walk: A faster equivalent of `headrace.order.walk_tables`, if there is one.

    Raises:
        BadArgumentError: All samples are skipped, or some that the dataset does not have.

    Examples:
        >>> import numpy as np
        >>> counts = np.array([5, 5])
        >>> order = Order(OrderSpec(seed=1), ShardTable(counts, counts * 8))
        >>> order.sample_ids(0, 0, 4)
        array([3, 1, 7, 2])
        >>> order.find(0, 7)
        array([2])
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
        self.table: Final = table
        self._runs = make_runs(spec, table)
        self.sample_count: Final = self._runs.sample_count
        self.memory_samples: Final = _memory(spec, table)
        self._skipper = Skipper(skips, self._runs) if skips is not None and len(skips) else None
        self._walk = walk
        self._split = LaneSplit(self.sample_count, spec.lanes, spec.unit)
        self.stretches: Final = self._split.stretches
        self._is_whole = spec.lanes == 1 and self.memory_samples >= self.sample_count
        self._root_key = derive(0, spec.seed)
        self._dealings: dict[tuple[int, bool], Dealings] = {}
        self._layouts: BoundedCache[int, Spread | StoredLayout] = BoundedCache(_LAYOUT_BYTES)
        self._halves: BoundedCache[tuple[int, int], Halves] = BoundedCache(_HALVES_BYTES)
        self._chunks: BoundedCache[tuple[int, ...], _Array] = BoundedCache(_CHUNK_BYTES)
        # By lane: finding the step of a place takes ten times as long as reading the place.
        self._latest: dict[int, _Chunk] = {}
        self._dealt = DealtSteps(self.sample_count, _DEALT_BYTES)
        self._networks: BoundedCache[tuple[int, int], Network] = BoundedCache(_NETWORK_BYTES)

    def sample_ids(self, epoch: int, start: int, stop: int) -> _Array:
        """Return the sample ids at the positions [start, stop) of an epoch.

        Args:
            epoch: In [0, 2**62).
            start: First position, >= 0.
            stop: Position after the last, in [`start`, `sample_count`].

        Returns:
            (stop - start,) int64, owned by the caller.

        Raises:
            BadArgumentError: The epoch or the range is not valid.
            PositionPastEndError: The range passes the end of the epoch.
        """
        check_positions(epoch, start, stop, sample_count=self.sample_count)
        return self._fill(epoch, self._stored_ids(epoch, start, stop))

    @property
    def has_skips(self) -> bool:
        """Return whether samples are skipped."""
        return self._skipper is not None

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which of the positions [start, stop) hold substitutes for skipped samples.

        Takes and raises what `sample_ids` does.

        Returns:
            (stop - start,) bool.
        """
        check_positions(epoch, start, stop, sample_count=self.sample_count)
        if self._skipper is None:
            return np.zeros(stop - start, np.bool_)
        return self._skipper.skips.contains(self._stored_ids(epoch, start, stop))

    def substitute(self, epoch: int, damaged: Sequence[int]) -> int:
        """Return the substitute for a sample that turned out to be damaged.

        Args:
            epoch: In [0, 2**62).
            damaged: The sample, followed by earlier substitutes that were damaged as well.

        Raises:
            BadArgumentError: The dataset has no other sample.
        """
        skips = None if self._skipper is None else self._skipper.skips
        skipper = skipper_of(skips, self._runs, damaged)
        return int(skipper.fill(self._skip_key(epoch), np.array(damaged[:1], np.int64))[0])

    @property
    def run_count(self) -> int:
        """Number of runs of the dataset; each is read once in an epoch."""
        return self._runs.count

    def step(self, epoch: int, lane: int, place: int) -> Step | None:
        """Return the step that holds a place of a lane, for callers that read places themselves.

        Args:
            epoch: In [0, 2**62).
            lane: In [0, `spec.lanes`).
            place: A place of the lane.

        Returns:
            The step; None where only `sample_ids` works: without shuffling, with skips, or if the
            step has more than `NETWORK_LIMIT` samples or too many runs.
        """
        if self._skipper is not None or not self.spec.shuffle:
            return None
        dealing = self._dealing(epoch, lane)
        number, start, count = dealing.step_at(0, place)
        if count > NETWORK_LIMIT:
            return None
        entries = dealing.entries(0, number)
        low, high = dealing.stretch(0, number, entries)
        runs = self._lane_layout(epoch, lane).stretch(low, high)
        if runs is None:
            return None
        key = derive(self._root_key, epoch, Stream.STEP, lane, number)
        deal_key = derive(self._root_key, epoch, Stream.DEAL, lane)
        return Step(
            start=start,
            count=count,
            key=key,
            second_key=derive(key, Stream.SECOND),
            is_small=count <= SORT_LIMIT,
            deal_key=deal_key,
            deal_second_key=derive(deal_key, Stream.SECOND),
            entries=entries,
            low=low,
            high=high,
            first_ids=runs[0],
            lengths=runs[1],
        )

    def runs_of(self, epoch: int, sample_ids: _Array) -> tuple[_Array, _Array]:
        """Return the first id of what is read with each sample, and the one after its last.

        That is the sample's run, or its half of the run where halves come one after the other.

        Args:
            epoch: In [0, 2**62).
            sample_ids: (n,) int64, each in [0, `sample_count`).
        """
        first, stop = self._runs.around(sample_ids)
        if not self.spec.shuffle or not self._dealing(epoch, 0).opening_samples[0]:
            return first, stop
        offsets = self._layout(epoch).offsets(sample_ids)
        lanes = self._lanes_of(offsets)
        inside = np.zeros(len(sample_ids), np.bool_)
        for lane in np.unique(lanes).tolist():
            low, high = self._lane_layout(epoch, lane).opening
            own = offsets - self._split.start(lane)
            inside |= (lanes == lane) & (own >= low) & (own < high)
        middle = self._runs.half_ends(sample_ids)
        is_second = sample_ids >= middle
        first = np.where(inside & is_second, middle, first)
        return first, np.where(inside & ~is_second, middle, stop)

    def lane_place(self, lane: int, position: int) -> int:
        """Return how many positions before `position`, in [0, `sample_count`], a lane fills."""
        return self._split.offset(lane, position)

    def lane_length(self, lane: int) -> int:
        """Return how many samples of an epoch a lane holds."""
        return self._split.length(lane)

    def at(self, epoch: int, positions: _Array) -> _Array:
        """Return the sample ids at positions of an epoch, given in any order.

        Args:
            epoch: In [0, 2**62).
            positions: (n,) int64, each in [0, `sample_count`).

        Returns:
            (n,) int64, owned by the caller.

        Raises:
            BadArgumentError: The epoch or a position is not valid.
            PositionPastEndError: A position is past the end of the epoch.
        """
        low, high = int(positions.min(initial=0)), int(positions.max(initial=-1))
        check_positions(epoch, low, max(high + 1, low), sample_count=self.sample_count)
        return self._fill(epoch, self._unfilled(epoch, positions))

    def blocks_of_runs(self, epoch: int, sample_ids: _Array, locate: Locate) -> _Array:
        """Return all blocks that are read with samples, ascending; takes what `runs_of` does."""
        return blocks_between(self.runs_of(epoch, sample_ids), locate)

    def positions(self, epoch: int, sample_ids: _Array) -> _Array:
        """Return the position of each sample in an epoch: the inverse of `at` without skips.

        The position of a skipped sample holds its substitute.

        Args:
            epoch: In [0, 2**62).
            sample_ids: (n,) int64, each in [0, `sample_count`).

        Returns:
            (n,) int64, owned by the caller.

        Raises:
            BadArgumentError: The epoch is not valid, or the dataset does not have a sample.
        """
        check_positions(epoch, 0, 0, sample_count=self.sample_count)
        outside = (sample_ids < 0) | (sample_ids >= self.sample_count)
        if outside.any():
            raise BadArgumentError(
                f"sample id {int(sample_ids[outside.argmax()])} is not in the dataset, which has "
                f"{self.sample_count} samples",
                field="sample_ids",
            )
        offsets = self._layout(epoch).offsets(sample_ids)
        lanes = self._lanes_of(offsets)
        positions = np.empty_like(sample_ids)
        for lane in np.unique(lanes).tolist():
            (members,) = np.nonzero(lanes == lane)
            places = self._places(epoch, lane, offsets[members])
            positions[members] = self._split.positions(lane, places)
        return positions

    def find(self, epoch: int, sample_id: int) -> _Array:
        """Return all positions of an epoch that hold a sample, also those where it is a substitute.

        Args:
            epoch: In [0, 2**62).
            sample_id: In [0, `sample_count`).

        Returns:
            (n,) int64, rising; empty if the sample is skipped.

        Raises:
            BadArgumentError: The epoch is not valid, or the dataset does not have the sample.
        """
        return self.find_each(epoch, np.array([sample_id]))[0]

    def find_each(self, epoch: int, sample_ids: _Array) -> list[_Array]:
        """Return what `find` returns, for each of several samples.

        Args:
            epoch: In [0, 2**62).
            sample_ids: (n,) int64, each in [0, `sample_count`).

        Raises:
            BadArgumentError: The epoch is not valid, or the dataset does not have a sample.
        """
        # Checks the epoch and the ids before they are looked up.
        own = np.split(self.positions(epoch, sample_ids), len(sample_ids))
        if self._skipper is None:
            return own
        key, skipped = self._skip_key(epoch), self._skipper.skips.contains(sample_ids)
        replaced = [
            sample_ids[:0] if is_skipped else self._skipper.replaced_by(key, sample_id)
            for sample_id, is_skipped in zip(sample_ids.tolist(), skipped.tolist(), strict=True)
        ]
        ends = np.cumsum([len(each) for each in replaced])[:-1]
        others = np.split(self.positions(epoch, np.concatenate(replaced)), ends)
        return [
            position[:0] if is_skipped else np.sort(np.append(position, more))
            for position, more, is_skipped in zip(own, others, skipped.tolist(), strict=True)
        ]

    def _lanes_of(self, offsets: _Array) -> _Array:
        starts = np.array([self._split.start(lane) for lane in range(1, self.spec.lanes)])
        return np.searchsorted(starts, offsets, side="right")

    def _stored_ids(self, epoch: int, start: int, stop: int) -> _Array:
        # The ids before substitution, so skipped samples are among them.
        if self.spec.lanes == 1:
            return self._read(epoch, 0, start, stop)
        order, ranges = self._split.by_lane(start, stop)
        pieces = [self._read(epoch, *each) for each in ranges]
        sample_ids = np.empty(stop - start, np.int64)
        sample_ids[order] = np.concatenate([*pieces, sample_ids[:0]])
        return sample_ids

    def _unfilled(self, epoch: int, positions: _Array) -> _Array:
        sample_ids = np.empty_like(positions)
        lanes = self._split.lane_of(positions)
        for lane in np.unique(lanes).tolist():
            (members,) = np.nonzero(lanes == lane)
            places = self._split.offsets(lane, positions[members])
            sample_ids[members] = self._at(epoch, lane, places)
        return sample_ids

    def _fill(self, epoch: int, sample_ids: _Array) -> _Array:
        if self._skipper is None:
            return sample_ids
        return self._skipper.fill(self._skip_key(epoch), sample_ids)

    def _skip_key(self, epoch: int) -> int:
        return derive(self._root_key, epoch, Stream.SKIPS)

    def _read(self, epoch: int, lane: int, start: int, stop: int) -> _Array:
        # The places [start, stop) of a lane.
        if not self.spec.shuffle:
            return np.arange(start, stop) + self._split.start(lane)
        found, place = np.empty(stop - start, np.int64), start
        while place < stop:
            first, chunk = self._chunk(epoch, lane, place)
            count = min(stop - place, first + len(chunk) - place)
            found[place - start : place - start + count] = chunk[place - first :][:count]
            place += count
        return found

    def _at(self, epoch: int, lane: int, places: _Array) -> _Array:
        if not self.spec.shuffle:
            return places + self._split.start(lane)
        sample_ids = np.empty_like(places)
        order = np.argsort(places, kind="stable")
        rising, done = places[order], 0
        while done < len(places):
            first, chunk = self._chunk(epoch, lane, int(rising[done]))
            stop = int(np.searchsorted(rising, first + len(chunk)))
            sample_ids[order[done:stop]] = chunk[rising[done:stop] - first]
            done = stop
        return sample_ids

    def _chunk(self, epoch: int, lane: int, place: int) -> tuple[int, _Array]:
        # The samples that are worked out together with a place, and the place of the first.
        latest = self._latest.get(lane)
        if latest is not None and latest.epoch == epoch and latest.start <= place < latest.stop:
            chunk = self._chunks.find((epoch, lane, *latest.key))
            if chunk is not None:
                return latest.start, chunk
        dealing = self._dealing(epoch, lane)
        step, start, length = dealing.step_at(0, place)
        if length > SORT_LIMIT:
            first = (place - start) // _CHUNK_SAMPLES * _CHUNK_SAMPLES
            part = (first, min(first + _CHUNK_SAMPLES, length))
            self._note(lane, _Chunk(epoch, start + part[0], start + part[1], (step, part[1])))
            return start + first, self._part(epoch, lane, (step, start, length), part)
        together = max(_CHUNK_SAMPLES // int(dealing.step_samples[0]), 1)
        last = int(dealing.last_steps[0])
        first = step if step == last else step - step % together
        stop = min(first + together, max(last, first + 1))
        # Large steps among them are permuted otherwise.
        numbers = np.arange(first, stop)
        large = numbers[dealing.step_length(0, numbers) > SORT_LIMIT]
        first = int(large[large < step].max(initial=first - 1)) + 1
        stop = int(large[large > step].min(initial=stop))
        if first != step:
            start = int(dealing.step_start(0, np.array([first]))[0])

        def make() -> _Array:
            steps = np.arange(first, stop)
            counts = dealing.step_length(0, steps)
            owners, slots = spread(counts)
            sample_ids = self._whole(epoch, lane, first, stop)
            if sample_ids is None:
                # In the order of slots, neighbours lie near each other in the layout, so they are
                # found faster.
                sample_ids = self._deal(epoch, lane, steps[owners], slots)
            slots = permutations(self._step_keys(epoch, lane, steps), counts)
            slots += starts_of(counts)[owners]
            return sample_ids.take(slots).astype(np.int64, copy=False)

        chunk = self._chunks.get_once((epoch, lane, first, 0), make)
        self._note(lane, _Chunk(epoch, start, start + len(chunk), (first, 0)))
        return start, chunk

    def _note(self, lane: int, chunk: _Chunk) -> None:
        if len(self._latest) >= _MOST_NOTED:
            self._latest.clear()
        self._latest[lane] = chunk

    def _part(
        self, epoch: int, lane: int, found: tuple[int, int, int], part: tuple[int, int]
    ) -> _Array:
        # A part of a step, as `Dealings.step_at` returns it, that is too large to be sorted.
        step, start, length = found

        def make() -> _Array:
            slots = self._permuter(epoch, lane, step, length)(np.arange(*part))
            if not self._dealing(epoch, lane).is_dealt(0, step):
                slots += start
                return self._lane_layout(epoch, lane).sample_ids(slots)
            whole = self._whole(epoch, lane, step, step + 1)
            if whole is not None:
                return whole.take(slots).astype(np.int64, copy=False)
            return self._deal(epoch, lane, np.full_like(slots, step), slots)

        return self._chunks.get_once((epoch, lane, step, part[1]), make)

    def _permuter(
        self, epoch: int, lane: int, step: int, length: int
    ) -> Callable[[_Array], _Array]:
        keys = self._step_keys(epoch, lane, np.array([step]))
        if length <= NETWORK_LIMIT:
            key = int(keys[0])
            return self._networks.get_once(
                (key, length), lambda: Network(key, length, walk=self._walk)
            ).at
        counts = np.array([length])
        return lambda places: permute(keys, counts, places)

    def _deal(self, epoch: int, lane: int, steps: _Array, slots: _Array) -> _Array:
        keys = self._deal_keys(epoch, lane)
        offsets = self._dealing(epoch, lane).offsets(*keys, 0, steps, slots)
        return self._lane_layout(epoch, lane).sample_ids(offsets)

    def _whole(
        self, epoch: int, lane: int, first: int, stop: int
    ) -> NDArray[np.int32] | NDArray[np.int64] | None:
        # The samples of steps by slot, if whole cohorts are worked out for them.
        dealing = self._dealing(epoch, lane)
        first_full, stop_full = dealing.full_steps(0)
        held = self.memory_samples * self.spec.lanes
        if not (first_full <= first and stop <= stop_full and self._dealt.has_room_for(held)):
            return None
        deal = LaneDeal(
            (epoch, lane),
            dealing.full_cohorts(0),
            *self._deal_keys(epoch, lane),
            self._lane_layout(epoch, lane).between,
        )
        return self._dealt.read(deal, first, stop)

    def _places(self, epoch: int, lane: int, offsets: _Array) -> _Array:
        # Turn offsets in the layout into places in the lane that has them.
        if not self.spec.shuffle:
            return offsets - self._split.start(lane)
        offsets = self._lane_layout(epoch, lane).offsets(offsets)
        dealing = self._dealing(epoch, lane)
        steps, slots = dealing.slots(*self._deal_keys(epoch, lane), 0, offsets)
        places = np.empty_like(slots)
        numbers, owners = np.unique(steps, return_inverse=True)
        lengths = dealing.step_length(0, numbers)
        keys = self._step_keys(epoch, lane, numbers)
        large = (lengths > SORT_LIMIT)[owners]
        (members,) = np.nonzero(large)
        own = owners[members]
        places[members] = unpermute(keys[own], lengths[own], slots[members])
        self._sorted_places(places, slots, owners, keys, lengths)
        result: _Array = places + dealing.step_start(0, steps)
        return result

    def _sorted_places(
        self,
        places: _Array,
        slots: _Array,
        owners: _Array,
        keys: NDArray[np.uint64],
        lengths: _Array,
    ) -> None:
        # Fill in the places of samples in sorted steps, several steps at a time.
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(len(keys) + 1))
        first = 0
        while first < len(keys):
            stop = first + max(int(np.searchsorted(np.cumsum(lengths[first:]), SORT_LIMIT)), 1)
            small = np.flatnonzero(lengths[first:stop] <= SORT_LIMIT) + first
            members = order[bounds[first] : bounds[stop]]
            members = members[lengths[owners[members]] <= SORT_LIMIT]
            if len(small):
                starts = starts_of(lengths[small])
                inverse = np.empty(starts[-1], np.int64)
                within, numbers = spread(lengths[small])
                inverse[permutations(keys[small], lengths[small]) + starts[within]] = numbers
                start = starts[np.searchsorted(small, owners[members])]
                places[members] = inverse[start + slots[members]]
            first = stop

    def _step_keys(self, epoch: int, lane: int, steps: _Array) -> NDArray[np.uint64]:
        key = derive(self._root_key, epoch, Stream.STEP, lane)
        return np.array([derive(key, step) for step in steps.tolist()], np.uint64)

    def _deal_keys(self, epoch: int, lane: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        keys = np.array([derive(self._root_key, epoch, Stream.DEAL, lane)], np.uint64)
        return keys, second_keys_of(keys)

    def _dealing(self, epoch: int, lane: int) -> Dealings:
        length, has_ramp = self._split.length(lane), self.spec.ramp and epoch == 0
        found = self._dealings.get((length, has_ramp))
        if found is None:
            # Lengths of lanes differ only by the rounding of a unit, so there are few.
            counts = np.array([[self.sample_count], [self._runs.count]], np.int64)
            found = Dealings(
                np.array([length], np.int64),
                np.array([self.memory_samples], np.int64),
                first_samples(*counts) * has_ramp,
            )
            self._dealings[length, has_ramp] = found
        return found

    def _lane_layout(self, epoch: int, lane: int) -> LaneLayout:
        layout, start = self._layout(epoch), self._split.start(lane)
        dealing = self._dealing(epoch, lane)
        first = int(dealing.opening[0])
        stop = first + 2 * int(dealing.opening_samples[0])

        def make() -> Halves:
            return halve(layout, self._runs, start + first, start + stop)

        return LaneLayout(
            layout, start, (first, stop), lambda: self._halves.get_once((epoch, lane), make)
        )

    def _layout(self, epoch: int) -> Spread | StoredLayout:
        # A whole epoch that is permuted at once needs no layout.
        is_stored = self._is_whole and not self._dealing(epoch, 0).opening[0]
        if is_stored or not self.spec.shuffle:
            return self._layouts.get_once(-1, StoredLayout)
        key = derive(self._root_key, epoch)
        return self._layouts.get_once(epoch, lambda: Spread(self._runs, self._pieces, key))

    @cached_property
    def _pieces(self) -> RunPieces:
        return make_pieces(self._runs)


def _memory(spec: OrderSpec, table: ShardTable) -> int:
    count, raw = table.sample_count, int(table.raw_bytes.sum())
    limits = [count]
    if spec.shuffle_bytes:
        limits.append(spec.shuffle_bytes * count // max(raw, 1))
    if spec.shuffle_samples:
        limits.append(spec.shuffle_samples)
    return max(min(limits), 1)
