"""The balanced tree that permutes the runs of a piece.

Any two neighbouring places of a piece lie in different halves of its storage, any four in different
quarters, and so on. Coins, which are single bits of draws, choose which.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order.basics.hash import draw

_Array = NDArray[np.int64]

LEVEL_BITS: Final = 56
# A word holds the coins of 64 numbers.
WORD_BITS: Final = 6
# Runs whose paths are held at the same time, which bounds memory.
_TOGETHER: Final = 1 << 15


class Coins(Protocol):
    """The coins of one epoch or of several."""

    def __call__(self, level: int, numbers: _Array, chosen: _Array | None) -> _Array:
        """Return coins of a level of the tree: (n,) int64 of 0 and 1.

        Args:
            level: The level of the tree.
            numbers: (n,) int64, the number of each coin.
            chosen: The places that the coins belong to; None for one coin at each place.
        """
        ...


def coins_of(key: int) -> Coins:
    """Return the coins of the epoch with a key."""

    def coins(level: int, numbers: _Array, chosen: _Array | None) -> _Array:
        del chosen  # All places are of one epoch.
        words = (numbers >> WORD_BITS).view(np.uint64) + np.uint64(level << LEVEL_BITS)
        return bits_of(draw(key, words), numbers)

    return coins


def bits_of(words: NDArray[np.uint64], numbers: _Array) -> _Array:
    """Return the coin of each number from its word; the words are changed in place."""
    words >>= (numbers & ((1 << WORD_BITS) - 1)).view(np.uint64)
    words &= np.uint64(1)
    return words.view(np.int64)


def tree_runs(coins: Coins, first: _Array, sizes: _Array, places: _Array) -> _Array:
    """Return the run at each place.

    Args:
        coins: The random bits of the epoch.
        first: (n,) int64, the first run of each place's piece.
        sizes: (n,) int64, how many runs the piece has, >= 1.
        places: (n,) int64, each in [0, size of its piece).

    Returns:
        (n,) int64.
    """
    low, size, place = first.copy(), sizes.copy(), places.copy()
    for level in range(int(sizes.max(initial=1) - 1).bit_length()):
        half = place >> 1
        side = (place & 1) ^ coins(level, low + half, None)
        left = _left(coins, level, low, size)
        side &= size > 1
        low += side * left
        size = np.where(size > 1, np.where(side == 1, size - left, left), 1)
        place = half
    return low


def tree_places(coins: Coins, first: _Array, sizes: _Array, runs: _Array) -> _Array:
    """Return the place of each run: the inverse of `tree_runs`, for coins of one epoch."""
    found = np.empty_like(runs)
    for start in range(0, len(runs), _TOGETHER):
        stop = start + _TOGETHER
        found[start:stop] = _places(coins, first[start:stop], sizes[start:stop], runs[start:stop])
    return found


def _places(coins: Coins, first: _Array, sizes: _Array, runs: _Array) -> _Array:
    low, size = first.copy(), sizes.copy()
    path = []
    for level in range(int(sizes.max(initial=1) - 1).bit_length()):
        left = _left(coins, level, low, size)
        side = ((runs >= low + left) & (size > 1)).astype(np.int64)
        path.append((low.copy(), side, size > 1))
        low += side * left
        size = np.where(size > 1, np.where(side == 1, size - left, left), 1)
    place = np.zeros_like(runs)
    for level in range(len(path) - 1, -1, -1):
        start, side, inner = path[level]
        flipped = side ^ coins(level, start + place, None)
        place = np.where(inner, 2 * place + flipped, place)
    return place


def _left(coins: Coins, level: int, low: _Array, size: _Array) -> _Array:
    # If the size is odd, a coin after those of all pairs chooses the half of the last run.
    half = size >> 1
    (odd,) = np.nonzero(size & 1)
    if not len(odd):
        return half
    left = half.copy()
    left[odd] += 1 - coins(level, (low + half)[odd], odd)
    return left
