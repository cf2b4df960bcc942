"""The order of a mixture: from positions of an epoch to pairs of dataset and sample id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.caches import BoundedCache
from headrace.errors import BadArgumentError
from headrace.order.basics.checks import check_positions, check_range
from headrace.order.basics.hash import Stream, derive
from headrace.order.basics.segments import starts_of
from headrace.order.dealing.lanes import LaneSplit
from headrace.order.mixture.amounts import (
    check_total,
    draw_shares,
    drawn_datasets,
    epoch_draws,
    epoch_positions,
    memories,
)
from headrace.order.mixture.choice import FixedChoice, dataset_keys
from headrace.order.mixture.draws import Draws, centred_draws, random_draws
from headrace.order.mixture.members import Members, SamplesOfPass
from headrace.order.mixture.mixture import Batching, Choice, MixtureSpec
from headrace.order.mixture.schedule import Schedule
from headrace.order.mixture.timeline import EpochTimeline, ScheduledTimeline, Span
from headrace.order.samples.runs import Locate, blocks_between
from headrace.order.samples.shard_table import ShardTable
from headrace.order.samples.skips import Skips, check_some_kept, join_skips

_Array = NDArray[np.int64]

# Random draws keep their proportions over this many places of a lane.
_BLOCK_PLACES: Final = 1 << 14
# With one dataset a unit, units are shuffled within blocks of this many.
_BLOCK_UNITS: Final = 1 << 10
# Places of smaller blocks, and of stretches of units, that are worked out in one call. With a
# hundred datasets that takes some milliseconds.
_PLACES_TOGETHER: Final = 1 << 13
# Most passes over a dataset in an epoch that a search goes through; each takes milliseconds.
_MOST_PASSES: Final = 1 << 12
_DRAW_LIMIT: Final = 1 << 62
_TIMELINE_BYTES: Final = 48 << 20
_DRAW_BYTES: Final = 8 << 20
_BLOCK_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    # The dataset of each place, its sample, and the pass over the dataset. With one dataset a unit,
    # the blocks of the timeline hold units of draws instead of samples.
    datasets: _Array
    sample_ids: _Array
    passes: _Array

    @property
    def nbytes(self) -> int:
        return self.datasets.nbytes + self.sample_ids.nbytes + self.passes.nbytes


class MixtureOrder:
    """The order of a mixture; thread-safe.

    Args:
        spec: The options.
        tables: The shards of each dataset, in the order of `spec.datasets`.
        skips: Samples to leave out of each dataset; other samples of their runs take their places.

    Raises:
        BadArgumentError: The tables do not fit the spec, an empty dataset is drawn from, or all
            samples that could be drawn from a dataset are skipped.
    """

    def __init__(
        self,
        spec: MixtureSpec,
        tables: Sequence[ShardTable],
        *,
        skips: Sequence[Skips | None] | None = None,
    ) -> None:
        if len(tables) != len(spec.datasets):
            raise BadArgumentError(
                f"the mixture has {len(spec.datasets)} datasets, but {len(tables)} tables were "
                "given",
                field="datasets",
            )
        self.spec = spec
        samples = np.array([table.sample_count for table in tables], np.int64)
        check_total("samples", samples.tolist())
        self.first_ids: Final = starts_of(samples)
        self._schedule = spec.weights()
        self._draws = epoch_draws(spec, samples.tolist())
        self.sample_count: Final = epoch_positions(spec, samples.tolist())
        _check_empty(spec, samples, self._draws)
        self.skips: Final = join_skips(skips, self.first_ids)
        if self.skips is not None:
            _check_skipped(spec, self.first_ids, self._draws, self.skips)
        self._unskipped = self if self.skips is None else MixtureOrder(spec, tables)
        self._members = self._make_members(tables)
        lanes, unit = spec.order.lanes, spec.order.unit
        self._split = LaneSplit(self.sample_count, lanes, unit)
        # With one dataset a unit all lanes follow one timeline, which counts units.
        units = LaneSplit(self.sample_count // unit, 1, 1)
        self._places = units if self._by_unit else self._split
        self._timelines: BoundedCache[int, EpochTimeline | ScheduledTimeline] = BoundedCache(
            _TIMELINE_BYTES
        )
        self._spans: BoundedCache[tuple[int, ...], Draws] = BoundedCache(_DRAW_BYTES)
        self._blocks: BoundedCache[tuple[int, ...], _Block] = BoundedCache(_BLOCK_BYTES)
        self._units: BoundedCache[tuple[int, ...], _Block] = BoundedCache(_BLOCK_BYTES)

    def sample_ids(self, epoch: int, start: int, stop: int) -> _Array:
        """Return sample ids in the mixture at the positions [start, stop) of an epoch.

        A sample id in the mixture is the id in its dataset plus `first_ids` of that dataset.

        Args:
            epoch: In [0, 2**62 / `sample_count`).
            start: First position, >= 0.
            stop: Position after the last, in [`start`, `sample_count`].

        Returns:
            (stop - start,) int64, owned by the caller.

        Raises:
            BadArgumentError: The epoch or the range is not valid.
            PositionPastEndError: The range passes the end of the epoch.
        """
        return self._read(epoch, start, stop).sample_ids

    def samples(self, epoch: int, start: int, stop: int) -> tuple[_Array, _Array]:
        """Return the dataset and the sample id in that dataset at the positions [start, stop).

        Takes and raises what `sample_ids` does.

        Returns:
            Two (stop - start,) int64 arrays, owned by the caller.
        """
        block = self._read(epoch, start, stop)
        sample_ids: _Array = block.sample_ids - self.first_ids[block.datasets]
        return block.datasets, sample_ids

    def with_passes(self, epoch: int, start: int, stop: int) -> tuple[_Array, _Array]:
        """Return the sample ids at the positions [start, stop), and the pass of each.

        A pass goes once through all samples of a dataset. With a fixed choice, which gives the same
        samples in every pass, it is 0. Takes and raises what `sample_ids` does.

        Returns:
            Two (stop - start,) int64 arrays, owned by the caller.
        """
        block = self._read(epoch, start, stop)
        return block.sample_ids, block.passes

    @property
    def has_skips(self) -> bool:
        """Return whether samples are skipped."""
        return self.skips is not None

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which of the positions [start, stop) hold substitutes for skipped samples.

        Takes and raises what `sample_ids` does.

        Returns:
            (stop - start,) bool.
        """
        if self.skips is None:
            return np.zeros(stop - start, np.bool_)
        return self.skips.contains(self._unskipped.sample_ids(epoch, start, stop))

    def find(self, epoch: int, sample_id: int) -> _Array:
        """Return all positions of an epoch that hold a sample, also those where it is a substitute.

        Args:
            epoch: In [0, 2**62 / `sample_count`).
            sample_id: The sample's id in the mixture, in [0, samples of all datasets).

        Returns:
            (n,) int64, rising; empty if the epoch does not draw the sample, or it is skipped.

        Raises:
            BadArgumentError: The epoch is not valid, or no dataset has the sample.
        """
        if not 0 <= sample_id < self.first_ids[-1]:
            raise BadArgumentError(
                f"sample id {sample_id} is not in the mixture, whose datasets have "
                f"{int(self.first_ids[-1])} samples",
                field="sample_ids",
            )
        dataset = int(np.searchsorted(self.first_ids, sample_id, side="right")) - 1
        own = np.array([sample_id - int(self.first_ids[dataset])])
        return self.find_in_passes(epoch, dataset, lambda _: own)

    def find_in_passes(self, epoch: int, dataset: int, samples: SamplesOfPass) -> _Array:
        """Return all positions of an epoch that hold samples which differ from pass to pass.

        Args:
            epoch: In [0, 2**62 / `sample_count`).
            dataset: The dataset of the samples.
            samples: Returns their ids in the dataset for a pass, numbered as in `with_passes`.

        Returns:
            (n,) int64, rising.

        Raises:
            BadArgumentError: The epoch is not valid, or has too many passes over the dataset.
        """
        self._check_positions(epoch, 0, 0)
        count = int(self.first_ids[dataset + 1]) - int(self.first_ids[dataset])
        draws = int(self._draws[dataset]) if self._schedule is None else self.sample_count
        if draws > _MOST_PASSES * count:
            raise BadArgumentError(
                f"an epoch of {self.sample_count} draws may draw a sample of dataset "
                f"{self.spec.datasets[dataset].name} {-(-draws // max(count, 1))} times; samples "
                f"can be found only if that is at most {_MOST_PASSES}",
                field="sample_ids",
            )
        found = [
            self._find_in_lane(epoch, lane, dataset, samples)
            for lane in range(self.spec.order.lanes)
        ]
        return np.sort(np.concatenate(found))

    def find_each(self, epoch: int, sample_ids: _Array) -> list[_Array]:
        """Return what `find` returns, for each of several samples; raises what `find` does."""
        return [self.find(epoch, sample_id) for sample_id in sample_ids.tolist()]

    def substitute(self, epoch: int, damaged: Sequence[int]) -> int:
        """Return the substitute for a sample that turned out to be damaged.

        Args:
            epoch: In [0, 2**62 / `sample_count`).
            damaged: The sample's id in the mixture, followed by earlier substitutes that were
                damaged as well; all of one dataset.

        Raises:
            BadArgumentError: No other sample is drawn from the dataset.
        """
        return self._members.substitute(epoch, damaged)

    def runs_of(self, epoch: int, sample_ids: _Array) -> tuple[_Array, _Array]:
        """Return the first id of each sample's run, and the one after its last, in the mixture.

        Runs are read whole in any epoch, because samples of one may come in different passes.
        """
        del epoch
        return self._members.runs_of(sample_ids)

    def blocks_of_runs(self, epoch: int, sample_ids: _Array, locate: Locate) -> _Array:
        """Return all blocks that are read with samples, ascending; takes what `runs_of` does."""
        return blocks_between(self.runs_of(epoch, sample_ids), locate)

    def check_global_batch_size(self, global_batch_size: int) -> None:
        """Refuse global batches of partial units if each unit comes from a single dataset.

        Raises:
            BadArgumentError: Batching is per dataset, and the size is not a multiple of the unit.
        """
        if self._by_unit and global_batch_size % self.spec.order.unit:
            raise BadArgumentError(
                f"global_batch_size is {global_batch_size}; with one dataset per unit it must be a "
                f"multiple of the unit, {self.spec.order.unit}",
                field="global_batch_size",
            )

    @property
    def draws(self) -> _Array:
        """Draws in an epoch for each dataset: (datasets,) int64; zeros with a schedule."""
        return self._draws.copy()

    @property
    def shares(self) -> NDArray[np.float64]:
        """Each dataset's share of the draws: (datasets,) float64; with a schedule the greatest."""
        return draw_shares(self._draws, self._schedule)

    @property
    def memory_samples(self) -> _Array:
        """Samples of each dataset that a lane shuffles together: (datasets,) int64."""
        return self._members.memories.copy()

    @property
    def _by_unit(self) -> bool:
        return self.spec.batching is Batching.PER_DATASET

    def _make_members(self, tables: Sequence[ShardTable]) -> Members:
        choice = self._choose(tables)
        used = tables if choice is None else choice.tables
        return Members(
            self.spec.order,
            tables,
            memories=memories(self.spec.order, used, self._draws, self.spec.weights()),
            first_ids=self.first_ids,
            choice=choice,
            skips=self.skips,
            titles=[dataset.name for dataset in self.spec.datasets],
            drawn=drawn_datasets(self.spec, self._draws),
        )

    def _choose(self, tables: Sequence[ShardTable]) -> FixedChoice | None:
        chosen = [
            int(draws) if dataset.choice is Choice.FIXED and draws < table.sample_count else None
            for dataset, table, draws in zip(
                self.spec.datasets, tables, self._draws.tolist(), strict=True
            )
        ]
        if all(count is None for count in chosen):
            return None
        return FixedChoice(
            tables,
            chosen,
            granularities=[dataset.granularity for dataset in self.spec.datasets],
            keys=dataset_keys(self.spec.order.seed, len(tables)),
        )

    def _read(self, epoch: int, start: int, stop: int) -> _Block:
        self._check_positions(epoch, start, stop)
        if start == stop:
            return _empty_block(0)
        read = self._read_units if self._by_unit else self._read_lane
        if self.spec.order.lanes == 1:
            return read(epoch, 0, start, stop)
        block = _empty_block(stop - start)
        order, ranges = self._split.by_lane(start, stop)
        parts = [read(epoch, *each) for each in ranges]
        block.datasets[order] = np.concatenate([part.datasets for part in parts])
        block.sample_ids[order] = np.concatenate([part.sample_ids for part in parts])
        block.passes[order] = np.concatenate([part.passes for part in parts])
        return block

    def _check_positions(self, epoch: int, start: int, stop: int) -> None:
        check_positions(epoch, start, stop, sample_count=self.sample_count)
        check_range("epoch", epoch, low=0, high=_DRAW_LIMIT // max(self.sample_count, 1))

    def _find_in_lane(self, epoch: int, lane: int, dataset: int, samples: SamplesOfPass) -> _Array:
        def find(start: int, stop: int) -> _Array:
            return self._members.draws_of(dataset, samples, lane, (start, stop))

        return self._positions_of(epoch, lane, dataset, find)

    def _positions_of(
        self, epoch: int, lane: int, dataset: int, find: Callable[[int, int], _Array]
    ) -> _Array:
        # Return the positions of draws of a dataset; `find` returns those wanted of a range of
        # draws.
        width, shared = 1, lane
        if self._by_unit:
            width, shared = self._unit_width(lane), 0
        within = self._block_size(lane)
        found = [np.zeros(0, np.int64)]
        for span in self._epoch_spans(epoch, shared):
            base, count = int(span.base[dataset]), int(span.counts[dataset])
            draws = find(base * width, (base + count) * width) if count else found[0]
            if not len(draws):
                continue
            spread = self._open_span(shared, span)
            places = [
                (span.start + spread.find(dataset, draw // width - base, within=within)) * width
                + draw % width
                for draw in draws.tolist()
            ]
            found.append(self._split.positions(lane, np.array(places)))
        return np.sort(np.concatenate(found))

    def _epoch_spans(self, epoch: int, lane: int) -> Iterator[Span]:
        place, length = 0, self._places.length(lane)
        while place < length:
            span = self._timeline(lane).span(epoch, place)
            yield span
            place = span.start + span.length

    def _open_span(self, lane: int, span: Span) -> Draws:
        words = (lane, *span.words)
        return self._spans.get_once(words, lambda: self._spread(lane, span))

    def _unit_width(self, lane: int) -> int:
        # Return how many positions of a unit a lane fills.
        unit, lanes = self.spec.order.unit, self.spec.order.lanes
        return (lane + 1) * unit // lanes - lane * unit // lanes

    def _read_lane(self, epoch: int, lane: int, start: int, stop: int) -> _Block:
        return _read_blocks(lambda place: self._block(epoch, lane, place), start, stop)

    def _read_units(self, epoch: int, lane: int, start: int, stop: int) -> _Block:
        return _read_blocks(lambda place: self._unit_block(epoch, lane, place), start, stop)

    def _unit_block(self, epoch: int, lane: int, place: int) -> tuple[_Block, int]:
        number, skipped = divmod(place, _PLACES_TOGETHER)
        start = number * _PLACES_TOGETHER
        stop = min(start + _PLACES_TOGETHER, self._split.length(lane))
        words = (lane, epoch, number)
        return self._units.get_once(
            words, lambda: self._make_units(epoch, lane, start, stop)
        ), skipped

    def _make_units(self, epoch: int, lane: int, start: int, stop: int) -> _Block:
        width = self._unit_width(lane)
        units, slots = np.divmod(np.arange(start, stop), width)
        # All lanes share one timeline, where a place is a unit and a draw is a unit of draws.
        drawn = self._read_lane(epoch, 0, start // width, -(-stop // width))
        units -= start // width
        datasets = drawn.datasets[units]
        draws = drawn.sample_ids[units] * width + slots
        return _Block(datasets, *self._members.drawn(lane, datasets, draws))

    def _block(self, epoch: int, lane: int, place: int) -> tuple[_Block, int]:
        # Return the block that holds a place of an epoch's lane, and the index of the place in it.
        span = self._timeline(lane).span(epoch, place)
        within = self._block_size(lane)
        size = within * max(1, _PLACES_TOGETHER // within)
        number, skipped = divmod(place - span.start, size)
        words = (lane, *span.words)
        draws = self._open_span(lane, span)

        def make() -> _Block:
            datasets, numbers = draws.block(number, size)
            passes = numbers
            if not self._by_unit:
                numbers, passes = self._members.drawn(lane, datasets, numbers)
            placed = datasets[draws.places(number, size, within=within)]
            # Keep the draws of each dataset in order. Otherwise its samples would be needed for
            # longer than the memory of the shuffle holds them.
            targets, sources = _by_dataset(placed), _by_dataset(datasets)
            rising, risen_passes = np.empty((2, len(numbers)), np.int64)
            rising[targets], risen_passes[targets] = numbers[sources], passes[sources]
            return _Block(placed, rising, risen_passes)

        return self._blocks.get_once((*words, number), make), skipped

    def _block_size(self, lane: int) -> int:
        if self._by_unit:
            return _BLOCK_UNITS
        if self.spec.batching is Batching.RANDOM:
            return _BLOCK_PLACES
        return self._unit_width(lane)

    def _spread(self, lane: int, span: Span) -> Draws:
        key = derive(0, self.spec.order.seed, Stream.SPAN, *span.words, lane)
        if self.spec.batching is Batching.STRATIFIED:
            return centred_draws(span, key)
        return random_draws(span, key)

    def _timeline(self, lane: int) -> EpochTimeline | ScheduledTimeline:
        return self._timelines.get_once(lane, lambda: self._make_timeline(lane))

    def _make_timeline(self, lane: int) -> EpochTimeline | ScheduledTimeline:
        unit = self.spec.order.unit
        if self._schedule is not None:
            return ScheduledTimeline(
                self._schedule, self._piece_starts(self._schedule, lane), self._places.length(lane)
            )
        draws = self._draws // unit if self._by_unit else self._draws
        return EpochTimeline(np.diff(self._places.offsets(lane, starts_of(draws))))

    def _piece_starts(self, schedule: Schedule, lane: int) -> list[tuple[int, int]]:
        # Weights change only between units.
        unit = self.spec.order.unit
        epochs, positions = np.divmod(np.array(schedule.starts), self.sample_count)
        positions -= positions % unit
        places = positions // unit if self._by_unit else self._places.offsets(lane, positions)
        return list(zip(epochs.tolist(), places.tolist(), strict=True))


def _by_dataset(datasets: _Array) -> _Array:
    # NumPy sorts 16-bit integers by radix.
    narrow = datasets.astype(np.uint16) if datasets.max(initial=0) < 1 << 16 else datasets
    return np.argsort(narrow, kind="stable")


def _read_blocks(find: Callable[[int], tuple[_Block, int]], start: int, stop: int) -> _Block:
    pieces = [_empty_block(0)]
    while start < stop:
        block, before = find(start)
        kept = slice(before, before + stop - start)
        pieces.append(_Block(block.datasets[kept], block.sample_ids[kept], block.passes[kept]))
        start += len(pieces[-1].datasets)
    return _Block(
        np.concatenate([piece.datasets for piece in pieces]),
        np.concatenate([piece.sample_ids for piece in pieces]),
        np.concatenate([piece.passes for piece in pieces]),
    )


def _empty_block(count: int) -> _Block:
    return _Block(*np.empty((3, count), np.int64))


def _check_empty(spec: MixtureSpec, samples: _Array, draws: _Array) -> None:
    wrong = np.flatnonzero(drawn_datasets(spec, draws) & (samples == 0))
    if len(wrong):
        name = spec.datasets[int(wrong[0])].name
        raise BadArgumentError(
            f"dataset {name} has no samples to draw: leave it out or give it the weight 0",
            field="datasets",
        )


def _check_skipped(spec: MixtureSpec, first_ids: _Array, draws: _Array, skips: Skips) -> None:
    for number in np.flatnonzero(drawn_datasets(spec, draws)).tolist():
        first, stop = first_ids[number : number + 2].tolist()
        check_some_kept(skips, first, stop, title=f"dataset {spec.datasets[number].name}")
