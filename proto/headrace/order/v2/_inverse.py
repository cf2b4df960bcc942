"""The network of `headrace.order._permutation` backwards, point by point."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.order._hash import second_keys_of
from headrace.order._permutation import NETWORK_ROUNDS, ceil_sqrt, shares

_Array = NDArray[np.int64]


def unpermute(keys: NDArray[np.uint64], counts: _Array, numbers: _Array) -> _Array:
    """Return at which place of permutations of [0, count) numbers are.

    Args:
        keys: (n,) uint64, the key of each number's permutation.
        counts: (n,) int64, how many numbers it permutes, in [1, 2**52).
        numbers: (n,) int64 in [0, count).

    Returns:
        (n,) int64: places, the inverse of `headrace.order._permutation.permute`.
    """
    places = _backwards(keys, counts, numbers)
    (outside,) = np.nonzero(places >= counts)
    while len(outside):
        own = counts[outside]
        places[outside] = _backwards(keys[outside], own, places[outside])
        outside = outside[places[outside] >= own]
    return places


def _backwards(keys: NDArray[np.uint64], counts: _Array, numbers: _Array) -> _Array:
    widths = ceil_sqrt(counts)
    heights = -(-counts // np.maximum(widths, 1))
    second_keys = second_keys_of(keys)
    high, low = np.divmod(numbers, np.maximum(widths, 1))
    for turn in range(NETWORK_ROUNDS - 1, -1, -1):
        moved, other, moduli = (high, low, heights) if turn % 2 else (low, high, widths)
        moved -= shares(keys, second_keys, other, moduli, turn=turn)
        moved += moduli * (moved < 0)
    high *= widths
    high += low
    return high
