"""Find which of many consecutive spans holds an ordinal: through a table, not by halving.

A batch of small samples asks for thousands of ordinals that lie anywhere; halving costs each some
dozen misses, the table two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Fewer are found by halving sooner than the table's calls return (measured).
_FEW = 1024
# Spans whose lengths differ so much that a bucket has more borders are found by halving.
_MAX_STEPS = 4


class Starts:
    """Consecutive spans of ordinals.

    Args:
        starts: ``(spans + 1,) int64``, ascending: span i holds ``[starts[i], starts[i + 1])``.

    Attributes:
        values: The same.
    """

    def __init__(self, starts: NDArray[np.int64]) -> None:
        self.values = starts
        first, stop = int(starts[0]), int(starts[-1])
        # Two to four buckets a span, so that few buckets have more than one border.
        self._shift = max(0, ((stop - first) // max(1, len(starts) - 1)).bit_length() - 2)
        buckets = np.arange(first, stop + (1 << self._shift), 1 << self._shift)
        spans = np.searchsorted(starts, buckets, side="right") - 1
        self._steps = int(np.diff(spans).max(initial=0))
        self._buckets = spans.astype(np.min_scalar_type(len(starts)))

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.values.nbytes + self._buckets.nbytes)

    def find(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the span that holds each ordinal, ``(n,) int64``; the last of several.

        Args:
            ordinals: ``(n,) int64`` in ``[starts[0], starts[-1])``.
        """
        if len(ordinals) < _FEW or self._steps > _MAX_STEPS:
            return np.searchsorted(self.values, ordinals, side="right") - 1
        spans: NDArray[np.int64] = self._buckets[(ordinals - self.values[0]) >> self._shift].astype(
            np.int64
        )
        for _ in range(self._steps):
            spans += self.values[1:][spans] <= ordinals
        return spans
