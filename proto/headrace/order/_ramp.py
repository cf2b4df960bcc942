"""The ramp: the first window of a lane, served as small windows that double.

A cold server then needs a sixteenth of a window for the first batches, and fetches the rest while
they are consumed.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order._hash import draw
from headrace.order._segments import cut_evenly

# The first window is served as windows of 1/16, 1/16, 1/8, 1/4 and 1/2 of it.
_SLICES: Final = 16
_DOUBLINGS: Final = (1, 2, 4, 8)
# So many runs share the small windows, each with some of its slices.
_GROUP_RUNS: Final = 64

_Array: TypeAlias = NDArray[np.int64]


def ramp_up(
    first_ids: _Array, sample_counts: _Array, windows: _Array, key: int
) -> tuple[_Array, _Array, _Array]:
    """Replace the runs of the first window by slices of them, in windows that double.

    Args:
        first_ids: (runs,) int64, first sample id of each run.
        sample_counts: (runs,) int64, samples of each run.
        windows: (runs,) int64, window number of each run, rising from 0.
        key: Turns each run, so that no sample comes early because of its place in storage.

    Returns:
        The same three arrays for the slices and the other runs.
    """
    first = int(np.searchsorted(windows, 0, side="right"))
    owners, begin, counts = cut_evenly(sample_counts[:first], np.full(first, _SLICES))
    turns = (draw(key, np.arange(first, dtype=np.uint64)) % np.uint64(_SLICES)).view(np.int64)
    turned = (np.arange(len(owners)) - turns[owners]) % _SLICES
    order = np.lexsort((owners, turned, owners // _GROUP_RUNS))
    order = order[counts[order] > 0]
    owners, begin, counts = owners[order], begin[order], counts[order]
    sixteenths = (np.cumsum(counts) - counts) * _SLICES // int(counts.sum())
    numbers = np.searchsorted(_DOUBLINGS, sixteenths, side="right")
    return (
        np.concatenate([first_ids[:first][owners] + begin, first_ids[first:]]),
        np.concatenate([counts, sample_counts[first:]]),
        np.concatenate([numbers, windows[first:] + numbers[-1]]),
    )
