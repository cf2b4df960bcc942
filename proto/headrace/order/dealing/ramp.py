"""The ramp: a run begins with small steps, so that little is read before its first batch."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Array: TypeAlias = NDArray[np.int64]

# The first step of a ramp takes samples from at least this many runs, on average, so that a table
# of less than four times as many is one uniform permutation.
_FIRST_RUNS: Final = 8


def first_samples(sample_counts: _Array, run_counts: _Array) -> _Array:
    """Return the fewest samples of the first step of a ramp: (datasets,) int64.

    Args:
        sample_counts: (datasets,) int64, samples of each dataset.
        run_counts: (datasets,) int64, runs of each dataset.
    """
    found: _Array = _FIRST_RUNS * sample_counts // np.maximum(run_counts, 1)
    return np.maximum(found, 1)
