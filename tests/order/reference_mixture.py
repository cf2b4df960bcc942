"""Mixtures of order version 1 once more, written from docs/order.md: slow and plain."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from headrace.order import Batching, Choice, MixtureSpec, ShardTable
from order.reference import (
    CHOICE,
    DATASET,
    PHASE,
    SLOTS,
    SPAN,
    Dataset,
    Shape,
    Skipped,
    ceil_div,
    derive,
    draw,
    lane_of,
    sorted_permutation,
)

SHAPE = Shape(band_parts=16, window_runs=64, sort_limit=64, ramp=False)
Pair = tuple[int, int]


def mixture_epoch(
    spec: MixtureSpec,
    tables: list[ShardTable],
    epoch: int,
    skips: list[frozenset[int]] | None = None,
) -> list[Pair]:
    """Return the dataset and the sample id at each position of an epoch."""
    return _Mixture(spec, tables, skips or [frozenset()] * len(tables)).epoch(epoch)


def apportion(length: int, weights: list[int]) -> list[int]:
    """Deal draws to datasets."""
    sums = list(accumulate(weights, initial=0))
    return [length * end // sums[-1] - length * start // sums[-1] for start, end in pairwise(sums)]


def lane_shares(sizes: list[int], lanes: int, unit: int) -> list[list[int]]:
    """Deal things laid end to end to lanes: how many of each each lane has."""
    shares = [[0] * len(sizes) for _ in range(lanes)]
    total, position = sum(sizes), 0
    for thing, size in enumerate(sizes):
        for _ in range(size):
            shares[lane_of(position, total, lanes, unit)][thing] += 1
            position += 1
    return shares


@dataclass(frozen=True)
class _Span:
    words: tuple[int, int, int]
    start: int
    counts: list[int]
    base: list[int]


class _Mixture:
    def __init__(
        self, spec: MixtureSpec, tables: list[ShardTable], skips: list[frozenset[int]]
    ) -> None:
        self.spec, self.order, self.skips = spec, spec.order, skips
        self.by_unit = spec.batching is Batching.PER_DATASET
        self.schedule = spec.weights()
        sizes = [int(table.sample_counts.sum()) for table in tables]
        self.draws = [
            dataset.draws(size) for dataset, size in zip(spec.datasets, sizes, strict=True)
        ]
        self.total = sum(self.draws) if self.schedule is None else spec.epoch_size or sum(sizes)
        if self.by_unit:
            self.draws = [count - count % self.order.unit for count in self.draws]
            self.total = sum(self.draws) if self.schedule is None else self.total
            self.total -= self.total % self.order.unit
        self.members = [self._member(number, table) for number, table in enumerate(tables)]
        counts = [member.sample_count for member in self.members]
        self.held = lane_shares(counts, self.order.lanes, self.order.unit)

    def _member(self, number: int, table: ShardTable) -> Dataset:
        key = derive(0, self.order.seed, DATASET, number)
        shards = list(zip(table.sample_counts.tolist(), table.raw_bytes.tolist(), strict=True))
        option = self.spec.datasets[number]
        chosen = None
        if option.choice is Choice.FIXED and self.draws[number] < sum(n for n, _ in shards):
            chosen = _choose(shards, self.draws[number], option.granularity, key)
            used = [len(ids) for ids in chosen]
            shards = [
                (c, min(raw, (raw // max(n, 1) + 1) * c))
                for (n, raw), c in zip(shards, used, strict=True)
            ]
        skips = Skipped(
            self.skips[number],
            int(table.sample_counts.sum()),
            None if chosen is None else tuple(i for ids in chosen for i in ids),
        )
        return Dataset(
            self.order,
            shards,
            range_reads=table.range_reads,
            shape=SHAPE,
            key=key,
            skips=skips,
        )

    def epoch(self, epoch: int) -> list[Pair]:
        lanes, unit = self.order.lanes, self.order.unit
        of = [lane_of(position, self.total, lanes, unit) for position in range(self.total)]
        if not of:
            return []
        if self.by_unit:
            return self._epoch_by_unit(epoch, of)
        filled = [iter(self._lane(epoch, lane, of.count(lane))) for lane in range(lanes)]
        return [next(filled[lane]) for lane in of]

    def _epoch_by_unit(self, epoch: int, of: list[int]) -> list[Pair]:
        units = self._in_order(epoch, 0, self.total // self.order.unit)
        pairs, unit = [], self.order.unit
        for position, lane in enumerate(of):
            dataset, number = units[position // unit]
            own = of[position // unit * unit : position // unit * unit + unit]
            slot = own[: position % unit].count(lane)
            pairs.append((dataset, self._resolve(lane, dataset, number * own.count(lane) + slot)))
        return pairs

    def _lane(self, epoch: int, lane: int, length: int) -> list[Pair]:
        return [
            (dataset, self._resolve(lane, dataset, number))
            for dataset, number in self._in_order(epoch, lane, length)
        ]

    def _resolve(self, lane: int, dataset: int, number: int) -> int:
        start = sum(held[dataset] for held in self.held[:lane])
        length = self.held[lane][dataset]
        if not length:
            start, length = 0, self.members[dataset].sample_count
        lane_ids = self.members[dataset].lane(number // length, lane, start, start + length)
        return lane_ids[number % length]

    def _in_order(self, epoch: int, lane: int, length: int) -> list[Pair]:
        width = (lane + 1) * self.order.unit // self.order.lanes
        width -= lane * self.order.unit // self.order.lanes
        sizes = {Batching.RANDOM: 1 << 14, Batching.STRATIFIED: width}
        pairs: list[Pair] = []
        for span in self._spans(epoch, lane, length):
            key = derive(0, self.order.seed, SPAN, *span.words, lane)
            pairs += self._shuffled(span, key, sizes.get(self.spec.batching, 1 << 10))
        return pairs

    def _shuffled(self, span: _Span, key: int, size: int) -> list[Pair]:
        events = []
        for dataset, count in enumerate(span.counts):
            step = (1 << 62) // max(count, 1)
            phase = draw(derive(key, PHASE), dataset) % step
            if self.spec.batching is Batching.STRATIFIED:
                phase = step // 2
            events += [
                ((phase + k * step) >> 20, dataset, span.base[dataset] + k) for k in range(count)
            ]
        events.sort()
        pairs = []
        for block, start in enumerate(range(0, len(events), size)):
            own = events[start : start + size]
            order = sorted_permutation(derive(key, SLOTS, block), len(own))
            pairs += [own[place][1:] for place in order]
        return pairs

    def _spans(self, epoch: int, lane: int, length: int) -> list[_Span]:
        if self.schedule is None:
            unit = self.order.unit if self.by_unit else 1
            draws = [count // unit for count in self.draws]
            lanes = (1, 1) if self.by_unit else (self.order.lanes, self.order.unit)
            counts = lane_shares(draws, *lanes)[lane]
            return [_Span((epoch, 0, 0), 0, counts, [epoch * count for count in counts])]
        spans: list[_Span] = []
        base = [0] * len(self.draws)
        starts = self._piece_starts(lane)
        for past in range(epoch + 1):
            for piece, (first_epoch, place) in enumerate(starts):
                start = 0 if first_epoch < past else place
                later = starts[piece + 1] if piece + 1 < len(starts) else (past + 1, 0)
                stop = later[1] if later[0] == past else length
                if first_epoch > past or later < (past, 1) or start >= stop:
                    continue
                counts = apportion(stop - start, self._weights(piece))
                spans += [_Span((past, piece, 0), start, counts, base)] if past == epoch else []
                base = [before + count for before, count in zip(base, counts, strict=True)]
        return spans

    def _piece_starts(self, lane: int) -> list[tuple[int, int]]:
        assert self.schedule is not None
        starts = []
        for sample in self.schedule.starts:
            epoch, position = divmod(sample, self.total)
            position -= position % self.order.unit
            place = position // self.order.unit
            if not self.by_unit:
                of = [
                    lane_of(before, self.total, self.order.lanes, self.order.unit)
                    for before in range(position)
                ]
                place = of.count(lane)
            starts.append((epoch, place))
        return starts

    def _weights(self, piece: int) -> list[int]:
        assert self.schedule is not None
        weights = self.schedule.weights[piece].tolist()
        scale = float((1 << 40) // len(weights)) / max(weights)
        return [max(round(weight * scale), 1 if weight else 0) for weight in weights]


def _choose(
    shards: list[tuple[int, int]], count: int, granularity: int, key: int
) -> list[list[int]]:
    counts = apportion(count, [samples for samples, _ in shards])
    chosen, first = [], 0
    for shard, ((samples, _), own) in enumerate(zip(shards, counts, strict=True)):
        groups, rest = ceil_div(own, granularity), samples - own
        ids = []
        for k in range(groups):
            low, high = k * rest // groups, (k + 1) * rest // groups
            jitter = draw(derive(key, CHOICE, shard), k) % (high - low + 1)
            members = range(k * own // groups, (k + 1) * own // groups)
            ids += [first + low + jitter + place for place in members]
        chosen.append(ids)
        first += samples
    return chosen
