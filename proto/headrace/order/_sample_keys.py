"""A key for each sample of an epoch, from which whoever transforms it draws what is random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.order._hash import Stream, derive, draw


def sample_keys(seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the keys of some positions of an epoch: they depend on nothing else.

    Args:
        seed: Of the order.
        epoch: The epoch.
        positions: (n,) int64.

    Returns:
        (n,) uint64; two positions of an epoch never share one.
    """
    return draw(derive(0, seed, epoch, Stream.SAMPLE), positions.astype(np.uint64))
