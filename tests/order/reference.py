"""Order version 1 once more, written from docs/order.md: slow, plain integers, no NumPy.

It shares no code with the package, so that an error in either shows, and a 64-bit overflow too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise

from headrace.order import OrderSpec

MASK = (1 << 64) - 1
PARTS, RUNS, RAMP, WINDOW, LANE, SECOND, DATASET, PHASE, SLOTS, CHOICE, SPAN = range(1, 12)


def mix(word: int) -> int:
    """Mix a word."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


def derive(key: int, *words: int) -> int:
    """Absorb words into a key."""
    for word in words:
        key = mix(key ^ mix(word + 0x9E3779B97F4A7C15 & MASK))
    return key


def draw(key: int, counter: int) -> int:
    """Draw a number."""
    return mix(mix(counter + key & MASK) ^ derive(key, SECOND))


def ceil_div(number: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-number // divisor)


def share(drawn: int, modulus: int) -> int:
    """Turn a draw into a number below a modulus."""
    return (drawn >> 32) * modulus >> 32


def sorted_permutation(key: int, count: int) -> list[int]:
    """Permute by sorting."""
    return sorted(range(count), key=lambda number: (draw(key, number) >> 32, number))


def feistel(key: int, count: int, place: int) -> int:
    """Permute one place."""
    width = next(root for root in range(count + 2) if root * root >= count)
    height = ceil_div(count, width)
    while True:
        high, low = divmod(place, width)
        for turn in range(12):
            if turn % 2:
                high = (high + share(draw(key, (turn << 56) + low), height)) % height
            else:
                low = (low + share(draw(key, (turn << 56) + high), width)) % width
        place = high * width + low
        if place < count:
            return place


@dataclass(frozen=True)
class Piece:
    """Some consecutive samples of storage."""

    first_id: int
    count: int
    raw: int
    cost: int = 0


@dataclass(frozen=True)
class Shape:
    """The constants of one dataset or of a mixture."""

    band_parts: int = 128
    window_runs: int = 256
    sort_limit: int = 1 << 18
    ramp: bool = True


def cut(piece: Piece, pieces: int) -> list[Piece]:
    """Cut a piece evenly."""
    ends = [(i * piece.count // pieces, i * piece.raw // pieces) for i in range(pieces + 1)]
    return [
        Piece(piece.first_id + first, end - first, raw_end - raw, piece.cost)
        for (first, raw), (end, raw_end) in pairwise(ends)
    ]


@dataclass(frozen=True)
class Skipped:
    """The sample ids to leave out.

    A dataset with a fixed choice holds its chosen samples alone; ``chosen`` are their ids.
    """

    ids: frozenset[int] = frozenset()
    dataset_samples: int = 0
    chosen: tuple[int, ...] | None = None

    def stand_in(self, window: list[int], place: int) -> int:
        """Return the sample that comes at a place of a window."""
        ring = window[place:] + window[:place]
        for sample in ring:
            if sample not in self.ids:
                return sample
        sample = ring[-1]
        while sample in self.ids:
            sample = (sample + 1) % self.dataset_samples
        return sample

    def window(self, window: list[int]) -> list[int]:
        """Return the samples of a window, which is given without skips."""
        if self.chosen is not None:
            window = [self.chosen[sample] for sample in window]
        return [self.stand_in(window, place) for place in range(len(window))]


NOTHING = Skipped()


class Dataset:
    """One dataset's passes."""

    def __init__(
        self,
        spec: OrderSpec,
        shards: list[tuple[int, int]],
        *,
        range_reads: bool,
        shape: Shape,
        key: int,
        skips: Skipped = NOTHING,
    ) -> None:
        self.spec, self.shape, self.key, self.range_reads = spec, shape, key, range_reads
        self.skips = skips
        self.sample_count = sum(count for count, _ in shards)
        first_ids = accumulate((count for count, _ in shards), initial=0)
        stored = [
            Piece(first, count, raw)
            for first, (count, raw) in zip(first_ids, shards, strict=False)
            if count
        ]
        self.parts, self.band_parts = stored, shape.band_parts
        if spec.shuffle and spec.window:
            total = sum(self.cost(part) for part in stored)
            limit = max(1 << 20, ceil_div(total, 1 << 18))
            if range_reads:
                self.parts = [
                    piece
                    for part in stored
                    for piece in cut(part, min(ceil_div(self.cost(part), limit), part.count))
                ]
            bands = ceil_div(4 * (1 << 20) * len(self.parts), max(total, 1))
            self.band_parts = max(shape.band_parts, bands)

    def cost(self, piece: Piece) -> int:
        """Cost of a piece."""
        costs = [ceil_div(piece.count << 20, self.spec.window)]
        if self.spec.window_bytes:
            costs.append(ceil_div(piece.raw << 20, self.spec.window_bytes))
        return max(costs)

    @lru_cache(maxsize=64)  # noqa: B019 - references live for one test
    def lane(self, number: int, lane: int, start: int, stop: int) -> list[int]:
        """Return the samples of [start, stop) of a pass's layout, shuffled as one lane."""
        key = derive(self.key, number)
        layout = self.parts
        if self.spec.shuffle:
            order = sorted_permutation(derive(key, PARTS), len(self.parts))
            layout = [self.parts[part] for part in order]
        pieces = trim(layout, start, stop)
        if not self.spec.shuffle or not self.spec.window:
            samples = expand(pieces)
            if self.spec.shuffle:
                samples = self.permuted(derive(key, LANE, lane), samples)
            return self.skips.window(samples)
        bands = max(1, len(pieces) // self.band_parts)
        samples = []
        for band in range(bands):
            own = pieces[band * len(pieces) // bands : (band + 1) * len(pieces) // bands]
            for window, runs in enumerate(self.windows(key, lane, band, own)):
                own_key = derive(key, WINDOW, lane, band, window)
                samples += self.skips.window(self.permuted(own_key, expand(runs)))
        return samples

    def permuted(self, key: int, samples: list[int]) -> list[int]:
        """Permute some samples."""
        if len(samples) <= self.shape.sort_limit:
            return [samples[place] for place in sorted_permutation(key, len(samples))]
        return [samples[feistel(key, len(samples), p)] for p in range(len(samples))]

    def windows(self, key: int, lane: int, band: int, parts: list[Piece]) -> list[list[Piece]]:
        """Deal a band's runs to windows."""
        runs = [run for part in parts for run in self.runs(part)]
        order = sorted_permutation(derive(key, RUNS, lane, band), len(runs))
        total, before = sum(run.cost for run in runs), 0
        windows: dict[int, list[Piece]] = {}
        for run in (runs[place] for place in order):
            number = before * ceil_div(total, 1 << 20) // max(total, 1)
            windows.setdefault(number, []).append(run)
            before += run.cost
        dealt = list(windows.values())
        if self.shape.ramp and band == 0 and len(dealt) > 1:
            dealt[:1] = ramp(derive(key, RAMP, lane), dealt[0])
        return dealt

    def runs(self, part: Piece) -> list[Piece]:
        """Cut a part into runs."""
        cost = self.cost(part)
        if not self.range_reads:
            return [replace(part, cost=cost)]
        limit = 4 << 20
        if self.spec.window_bytes:
            limit = min(limit, max(1, self.spec.window_bytes // self.shape.window_runs))
        wanted = max(
            ceil_div(part.count, max(1, self.spec.window // self.shape.window_runs)),
            ceil_div(part.raw, limit),
        )
        runs = cut(part, min(wanted, part.count, 4096))
        return [replace(run, cost=ceil_div(cost * run.count, part.count)) for run in runs]


def ramp(key: int, runs: list[Piece]) -> list[list[Piece]]:
    """Serve a window as windows that double."""
    slices = [
        (j // 64, (t - draw(key, j) % 16) % 16, j, piece)
        for j, run in enumerate(runs)
        for t, piece in enumerate(cut(run, 16))
        if piece.count
    ]
    slices.sort(key=lambda item: item[:3])
    total, before = sum(run.count for run in runs), 0
    windows: dict[int, list[Piece]] = {}
    for *_, piece in slices:
        windows.setdefault((before * 16 // total).bit_length(), []).append(piece)
        before += piece.count
    return list(windows.values())


def trim(pieces: list[Piece], start: int, stop: int) -> list[Piece]:
    """Keep [start, stop) of pieces laid end to end."""
    kept, before = [], 0
    for piece in pieces:
        front, back = max(start - before, 0), max(before + piece.count - stop, 0)
        before += piece.count
        count, raw = piece.count, piece.raw
        for less in (front, back):
            if less and count > less:
                raw = min(raw, (raw // count + 1) * (count - less))
            count -= less
        if count > 0:
            kept.append(Piece(piece.first_id + front, count, raw))
    return kept


def expand(pieces: list[Piece]) -> list[int]:
    """Write out the sample ids of pieces."""
    return [piece.first_id + i for piece in pieces for i in range(piece.count)]


def lane_of(position: int, total: int, lanes: int, unit: int) -> int:
    """Return the lane that fills a position."""
    start = position // unit * unit
    length = min(unit, total - start)
    return ((position - start + 1) * lanes - 1) // length


def epoch_ids(
    spec: OrderSpec,
    shards: list[tuple[int, int]],
    *,
    range_reads: bool,
    epoch: int,
    skips: frozenset[int] = frozenset(),
) -> list[int]:
    """Return one epoch of one dataset."""
    key = derive(0, spec.seed)
    total = sum(count for count, _ in shards)
    skipped = Skipped(skips, total)
    dataset = Dataset(spec, shards, range_reads=range_reads, shape=Shape(), key=key, skips=skipped)
    lanes = [lane_of(position, total, spec.lanes, spec.unit) for position in range(total)]
    starts = list(accumulate((lanes.count(lane) for lane in range(spec.lanes)), initial=0))
    filled = [
        iter(dataset.lane(epoch, lane, starts[lane], starts[lane + 1]))
        for lane in range(spec.lanes)
    ]
    return [next(filled[lane]) for lane in lanes]
