"""Timelines: how many draws each dataset has in each stretch of a run."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.order.dealing.lanes import LaneSplit
from headrace.order.mixture.schedule import Schedule, apportion

# Longer spans are split, so that times in a span are exact to a quarter of an interval.
SPAN_LIMIT: Final = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A stretch of one lane of one epoch in which the weights are constant.

    Attributes:
        words: Epoch, piece and number of the split, which make its keys different from others.
        start: Its first place in the epoch's lane.
        length: Number of places.
        counts: (datasets,) int64, draws from each dataset; their sum is `length`.
        base: (datasets,) int64, earlier draws from each dataset in this lane.
    """

    words: tuple[int, int, int]
    start: int
    length: int
    counts: NDArray[np.int64]
    base: NDArray[np.int64]


class EpochTimeline:
    """The timeline without weights: every epoch draws the same number from each dataset.

    Args:
        counts: (datasets,) int64, draws of an epoch in this lane.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._counts = counts
        self._length = int(counts.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._counts.nbytes

    def span(self, epoch: int, place: int) -> Span:
        """Return the span that holds a place of an epoch's lane."""
        span = Span((epoch, 0, 0), 0, self._length, self._counts, epoch * self._counts)
        return split_span(span, place)


class ScheduledTimeline:
    """The timeline of a schedule of weights.

    Args:
        schedule: The weights.
        starts: For each piece, the epoch in which it starts and the place in the epoch's lane.
        length: Places of an epoch's lane, >= 1.
    """

    def __init__(self, schedule: Schedule, starts: list[tuple[int, int]], length: int) -> None:
        self._shares = [schedule.shares(piece) for piece in range(len(starts))]
        self._starts = starts
        self._length = length
        self._base = np.zeros((len(starts), schedule.weights.shape[1]), np.int64)
        for piece, stop in enumerate(starts[1:]):
            self._base[piece + 1] = self._base[piece] + self._draws(piece, stop)

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return 2 * self._base.nbytes

    def span(self, epoch: int, place: int) -> Span:
        """Return the span that holds a place of an epoch's lane."""
        piece = bisect_right(self._starts, (epoch, place)) - 1
        start = self._starts[piece][1] if self._starts[piece][0] == epoch else 0
        stop = self._length
        if piece + 1 < len(self._starts) and self._starts[piece + 1][0] == epoch:
            stop = self._starts[piece + 1][1]
        base = self._base[piece] + self._draws(piece, (epoch, start))
        counts = apportion(stop - start, self._shares[piece])
        return split_span(Span((epoch, piece, 0), start, stop - start, counts, base), place)

    def _draws(self, piece: int, stop: tuple[int, int]) -> NDArray[np.int64]:
        # Return the draws from the start of a piece up to a place in the same or a later epoch.
        (first_epoch, first), (epoch, place) = self._starts[piece], stop
        shares = self._shares[piece]
        if epoch == first_epoch:
            return apportion(place - first, shares)
        draws = apportion(self._length - first, shares) + apportion(place, shares)
        if epoch > first_epoch + 1:
            draws += (epoch - first_epoch - 1) * apportion(self._length, shares)
        return draws


def split_span(span: Span, place: int) -> Span:
    """Return the part of a long span that holds a place, with its exact share of the draws."""
    splits = -(-span.length // SPAN_LIMIT)
    if splits <= 1:
        return span
    # Number all draws, dataset after dataset: draw i goes to split i modulo splits.
    split = LaneSplit(span.length, splits, splits)
    starts = [split.start(number) for number in range(splits + 1)]
    number = bisect_right(starts, place - span.start) - 1
    sums = np.zeros(len(span.counts) + 1, np.int64)
    np.cumsum(span.counts, out=sums[1:])
    return Span(
        words=(span.words[0], span.words[1], number),
        start=span.start + starts[number],
        length=starts[number + 1] - starts[number],
        counts=np.diff(split.offsets(number, sums)),
        base=span.base + np.diff(split.starts(number, sums)),
    )
