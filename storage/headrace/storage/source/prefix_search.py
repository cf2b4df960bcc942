"""Find which of many consecutive spans contains an ordinal, with a table instead of bisection.

A batch of small samples looks up thousands of scattered ordinals; bisection costs about a dozen
cache misses each, the table two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# For fewer ordinals, bisection is faster than the calls for the table (measured).
_FEW = 1024
# Spans whose lengths differ so much that a bucket has more borders are found by bisection.
_MAX_STEPS = 4


class Starts:
    """Consecutive spans of ordinals.

    Args:
        starts: ``(spans + 1,) int64``, ascending: span i holds ``[starts[i], starts[i + 1])``.

    Attributes:
        values: The starts.
        buckets: For each bucket of ``2 ** shift`` ordinals, the span of its first ordinal; uint16,
            or wider if there are more spans.
        shift: The logarithm of a bucket's size.
        steps: The most spans that start in a bucket after its first ordinal.
    """

    def __init__(self, starts: NDArray[np.int64]) -> None:
        self.values = starts
        first, stop = int(starts[0]), int(starts[-1])
        # Two to four buckets a span, so that few buckets have more than one border.
        self.shift = max(0, ((stop - first) // max(1, len(starts) - 1)).bit_length() - 2)
        buckets = np.arange(first, stop + (1 << self.shift), 1 << self.shift)
        spans = np.searchsorted(starts, buckets, side="right") - 1
        self.steps = int(np.diff(spans).max(initial=0))
        self.buckets = spans.astype(np.result_type(np.uint16, np.min_scalar_type(len(starts))))

    @property
    def nbytes(self) -> int:
        """Return the size of the arrays in bytes."""
        return int(self.values.nbytes + self.buckets.nbytes)

    def find(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the span of each ordinal, ``(n,) int64``; the last one if several match.

        Args:
            ordinals: ``(n,) int64`` in ``[starts[0], starts[-1])``.
        """
        if len(ordinals) < _FEW or self.steps > _MAX_STEPS:
            return np.searchsorted(self.values, ordinals, side="right") - 1
        spans: NDArray[np.int64] = self.buckets[(ordinals - self.values[0]) >> self.shift].astype(
            np.int64
        )
        for _ in range(self.steps):
            spans += self.values[1:][spans] <= ordinals
        return spans


Search: TypeAlias = Callable[
    [Starts, NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]
]
"""Find the span of each ordinal, as `Starts.find`, and the ordinal's offset in it."""


def search_starts(
    starts: Starts, ordinals: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find spans with NumPy."""
    spans = starts.find(ordinals)
    return spans, ordinals - np.take(starts.values, spans, mode="clip")
