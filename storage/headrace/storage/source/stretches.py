"""What an order needs to know about a dataset, whatever its layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches of neighbouring samples cut into blocks uniformly: usually the shards, in order.

    For files with large row groups of different sizes, each row group is a stretch, so that it is
    read separately and once.

    Attributes:
        sample_counts: ``(stretches,) int64``: the number of samples; may contain zeros.
        raw_bytes: ``(stretches,) int64``: the size of the samples in bytes.
        block_samples: ``(stretches,) int64``, the samples of every block of a stretch except the
            last, which may have fewer; all its samples if it can only be read as a whole; 0 if
            blocks differ, and are small enough to be read for a part of their samples.
    """

    sample_counts: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    block_samples: NDArray[np.int64]
