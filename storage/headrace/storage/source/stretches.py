"""What an order reads of a dataset, whatever its layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Neighbouring samples that are cut into blocks in one way: mostly the shards, in order.

    Files whose row groups differ and are large are a stretch a row group, so that each of them is
    read alone and once.

    Attributes:
        sample_counts: ``(stretches,) int64``; may hold zeros.
        raw_bytes: ``(stretches,) int64``, bytes of their samples.
        block_samples: ``(stretches,) int64``, samples of every block of a stretch but its last,
            which may have fewer; all its samples where it can only be read whole; 0 where blocks
            differ, and are small enough to be read for a part of their samples.
    """

    sample_counts: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    block_samples: NDArray[np.int64]
