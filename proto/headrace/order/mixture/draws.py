"""Draws: which dataset each place of a span draws from, and the number of that draw.

The draws of a dataset are spread evenly over the time of a span, which runs from 0 to 2**62. All
draws, sorted by time, make one sequence, which is shuffled block by block. So any block can be
worked out on its own, and no dataset runs far ahead of its share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.order.basics.hash import Stream, derive, derive_each, draw
from headrace.order.basics.permutation import permutation, permutations
from headrace.order.basics.segments import spread
from headrace.order.mixture.timeline import Span

_TIME_BITS: Final = 62
# Draws are sorted by time without these bits, and by dataset where that is equal.
_TICK_MASK: Final = (1 << 20) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The draws of one span.

    Attributes:
        span: The span.
        key: The span's key.
        steps: (datasets,) int64, time between two draws of each dataset.
        phases: (datasets,) int64, time of each dataset's first draw.
    """

    span: Span
    key: int
    steps: NDArray[np.int64]
    phases: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return 4 * self.steps.nbytes

    def block(self, number: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a block of the span in the order of time.

        Args:
            number: Number of the block.
            size: Places of a block; the span's last may be shorter.

        Returns:
            Two int64 arrays: the dataset of each draw, and its number among the lane's draws of
            that dataset. Numbers of one dataset rise.
        """
        start = number * size
        stop = min(start + size, self.span.length)
        # At any time each dataset is within one draw of its share, and times are rounded by less
        # than one draw, so a slack of twice the datasets is enough on either side.
        slack = 2 * len(self.steps) + 2
        first = self._draws_before(self._time(start - slack))
        end = self._draws_before(self._time(stop + slack))
        owners, numbers = spread(end - first)
        numbers += first[owners]
        # Tick and dataset share one word; a dataset has at most one draw in a tick.
        words = (self.phases[owners] + numbers * self.steps[owners]) & ~_TICK_MASK | owners
        words.sort()
        skipped = start - int(first.sum())
        words = words[skipped : skipped + stop - start]
        owners = words & _TICK_MASK
        numbers = (words - owners - self.phases[owners] + _TICK_MASK) // self.steps[owners]
        return owners, numbers + self.span.base[owners]

    def places(self, number: int, size: int, *, within: int) -> NDArray[np.int64]:
        """Return the draw, by time, whose dataset each place of a block has: (n,) int64.

        The draws of one dataset stay in their order: its places get them one after the other.

        Args:
            number: Number of the block.
            size: Places of a block.
            within: Places that are permuted among themselves; divides `size`.
        """
        first, stop = number * size, min((number + 1) * size, self.span.length)
        counts = np.full(-(-(stop - first) // within), within)
        counts[-1] -= len(counts) * within - (stop - first)
        numbers = np.arange(first // within, first // within + len(counts))
        slots_key = np.full(len(counts), derive(self.key, Stream.SLOTS), np.uint64)
        places = permutations(derive_each(slots_key, numbers), counts)
        places += np.repeat(np.arange(len(counts)) * within, counts)
        return places

    def find(self, dataset: int, number: int, *, within: int) -> int:
        """Return the place of the span that has a draw: the inverse of `block` and `places`.

        Args:
            dataset: The dataset.
            number: Number of the draw among the span's draws of that dataset.
            within: Places that are permuted among themselves.
        """
        time = int(self.phases[dataset] + number * self.steps[dataset]) & ~_TICK_MASK
        before = self._draws_before(time)
        until = self._draws_before(time + _TICK_MASK + 1)
        # Within a tick, datasets draw in their order.
        rank = number + int(until[:dataset].sum() + before[dataset + 1 :].sum())
        block, slot = divmod(rank, within)
        owners, _ = self.block(block, within)
        earlier = int(np.count_nonzero(owners[:slot] == dataset))
        placed = owners[permutation(derive(self.key, Stream.SLOTS, block), len(owners))]
        return block * within + int(np.flatnonzero(placed == dataset)[earlier])

    def _time(self, place: int) -> int:
        time = min(max(place, 0), self.span.length) * (1 << _TIME_BITS) // self.span.length
        return time & ~_TICK_MASK

    def _draws_before(self, time: int) -> NDArray[np.int64]:
        draws: NDArray[np.int64] = -((self.phases - time) // self.steps)
        np.maximum(draws, 0, out=draws)
        return np.minimum(draws, self.span.counts, out=draws)


def random_draws(span: Span, key: int) -> Draws:
    """Spread each dataset's draws evenly, starting at a random time."""
    steps = _steps(span)
    phases = draw(derive(key, Stream.PHASE), np.arange(len(steps), dtype=np.uint64))
    phases %= steps.view(np.uint64)
    return Draws(span, key, steps, phases.view(np.int64))


def centred_draws(span: Span, key: int) -> Draws:
    """Spread each dataset's draws evenly, each in the middle of its interval."""
    steps = _steps(span)
    return Draws(span, key, steps, steps // 2)


def _steps(span: Span) -> NDArray[np.int64]:
    steps: NDArray[np.int64] = (1 << _TIME_BITS) // np.maximum(span.counts, 1)
    return steps
