"""Keyed permutations of [0, n): as a whole by sorting, or point by point.

Sorting is uniform over all n! permutations for any n, but takes work and memory for n numbers.
Single points of a large permutation come from a generalized Feistel network instead. If many
points of one network are needed, its draws are made once and looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order.basics.hash import draw_each, second_keys_of
from headrace.order.basics.segments import spread

# Fewer than 8 rounds show structure; 12 are enough for halves of 8, the smallest in use.
NETWORK_ROUNDS: Final = 12
# The counter of a round's draw is turn * 2**56 + half.
_TURN_BITS: Final = 56
_DRAWN_BITS: Final = 32
# The tables for this many numbers take 0.8 MiB and 2 ms; their sides still fit in 15 bits.
NETWORK_LIMIT: Final = 1 << 30


def permutation(key: int, count: int) -> NDArray[np.int64]:
    """Permute [0, count) by sorting draws; use it where the whole permutation is needed.

    Place p holds the number whose draw is the p-th smallest; draws are compared by their upper 32
    bits, and by the number where those are equal.

    Args:
        key: A key of `headrace.order.basics.hash.derive`.
        count: How many numbers, in [0, 2**32).

    Returns:
        (count,) int64: the number at each place.
    """
    return permutations(np.array([key], np.uint64), np.array([count]))


def permutations(keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Permute several ranges, each as `permutation` would.

    Args:
        keys: (n,) uint64.
        counts: (n,) int64.

    Returns:
        (sum of counts,) int64: the permutations one after the other.
    """
    number_bits = max(int(counts.max(initial=1)) - 1, 0).bit_length()
    if (len(counts) - 1).bit_length() + _DRAWN_BITS + number_bits > 64:  # noqa: PLR2004 - a word
        half = len(counts) // 2
        parts = (permutations(keys[:half], counts[:half]), permutations(keys[half:], counts[half:]))
        return np.concatenate(parts)
    owners, numbers = spread(counts)
    # Owner, draw and number share one word, so that one plain sort is enough.
    words = draw_each(keys if len(keys) == 1 else keys[owners], numbers.view(np.uint64))
    words >>= np.uint64(_DRAWN_BITS)
    words |= owners.view(np.uint64) << np.uint64(_DRAWN_BITS)
    words <<= np.uint64(number_bits)
    words |= numbers.view(np.uint64)
    words.sort()
    words &= np.uint64((1 << number_bits) - 1)
    return words.view(np.int64)


def permute(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the numbers at single places of permutations of [0, count).

    Args:
        keys: (n,) or (1,) uint64, the key of each lookup's permutation.
        counts: (n,) or (1,) int64, how many numbers it permutes, in [1, 2**52).
        places: (n,) int64 in [0, count).

    Returns:
        (n,) int64: the number at each of the places.
    """
    permuted = _feistel(keys, counts, places)
    # The network permutes a rectangle that is a little larger than count. A number that lands in
    # the surplus is permuted again until it leaves it, so the whole stays a bijection.
    (outside,) = np.nonzero(permuted >= counts)
    while len(outside):
        own_keys = keys if len(keys) == 1 else keys[outside]
        own_counts = counts if len(counts) == 1 else counts[outside]
        permuted[outside] = _feistel(own_keys, own_counts, permuted[outside])
        outside = outside[permuted[outside] >= own_counts]
    return permuted


def unpermute(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the places of numbers in permutations of [0, count).

    Args:
        keys: (n,) uint64, the key of each number's permutation.
        counts: (n,) int64, how many numbers it permutes, in [1, 2**52).
        numbers: (n,) int64 in [0, count).

    Returns:
        (n,) int64: the inverse of `permute`.
    """
    places = _backwards(keys, counts, numbers)
    (outside,) = np.nonzero(places >= counts)
    while len(outside):
        own = counts[outside]
        places[outside] = _backwards(keys[outside], own, places[outside])
        outside = outside[places[outside] >= own]
    return places


Walk: TypeAlias = Callable[[NDArray[np.uint16], int, int, NDArray[np.int64]], NDArray[np.int64]]
"""Does what `walk_tables` does, possibly faster."""


class Network:
    """One permutation of [0, count), point by point, at a fifth of the cost of `permute`.

    A round draws by one half of the number alone, so it has few different draws, which are made
    once. They fill 12 tables of about the square root of ``count`` numbers each, so this is for
    counts up to `NETWORK_LIMIT`.

    Args:
        key: A key of `headrace.order.basics.hash.derive`.
        count: How many numbers, in [1, `NETWORK_LIMIT`].
        walk: Looks numbers up in the tables, as `walk_tables` does.
    """

    def __init__(self, key: int, count: int, *, walk: Walk | None = None) -> None:
        self._count = count
        self._walk = walk_tables if walk is None else walk
        self._width, height = network_sides(count)
        keys = np.array([key], np.uint64)
        second_keys = second_keys_of(keys)
        halves = np.arange(max(self._width, height))
        turns = np.arange(NETWORK_ROUNDS)[:, None]
        moduli = np.where(turns % 2, height, self._width)
        shares = _shares(keys, second_keys, halves, moduli, turn=turns)
        # Sixteen bits hold the sum of two numbers below either side of the rectangle.
        self._tables = shares.astype(np.uint16)

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return self._tables.nbytes

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number at each place in [0, count): (n,) int64."""
        return self._walk(self._tables, self._width, self._count, places)


def network_sides(count: int) -> tuple[int, int]:
    """Return the width and the height of the rectangle that a network of this count permutes."""
    width = int(_ceil_sqrt(np.array([count]))[0])
    return width, -(-count // width)


def walk_tables(
    tables: NDArray[np.uint16], width: int, count: int, places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the numbers at single places of a permutation, from the tables of its network.

    Args:
        tables: (rounds, n) uint16: how far each round moves one half, indexed by the other half.
            Even rounds move the low half, a number below `width`; odd rounds move the high half,
            which is below ceil(`count` / `width`).
        width: The width of the rectangle that the network permutes.
        count: How many numbers.
        places: (m,) int64 in [0, count).

    Returns:
        (m,) int64: the number at each of the places, owned by the caller.
    """
    permuted = _pass(tables, width, count, places)
    (outside,) = np.nonzero(permuted >= count)
    while len(outside):
        permuted[outside] = _pass(tables, width, count, permuted[outside])
        outside = outside[permuted[outside] >= count]
    return permuted


def _pass(
    tables: NDArray[np.uint16], width: int, count: int, places: NDArray[np.int64]
) -> NDArray[np.int64]:
    height = -(-count // width)
    indices, rest = np.divmod(places, width)
    high, low = indices.astype(np.uint16), rest.astype(np.uint16)
    spare = np.empty_like(low)
    for turn, table in enumerate(tables):
        moved, other, modulus = (high, low, height) if turn % 2 else (low, high, width)
        np.copyto(indices, other)
        # All modes but "clip" gather into a temporary buffer first.
        np.take(table, indices, out=spare, mode="clip")
        moved += spare
        np.subtract(moved, np.uint16(modulus), out=spare)
        # What fell below zero has wrapped around, so it is the greater one.
        np.minimum(moved, spare, out=moved)
    np.copyto(indices, high)
    indices *= width
    indices += low
    return indices


def _feistel(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.int64]:
    # Source: Black and Rogaway, "Ciphers with arbitrary finite domains" (2002).
    widths = _ceil_sqrt(counts)
    heights = -(-counts // widths)
    second_keys = second_keys_of(keys)
    high, low = np.divmod(places, widths)
    for turn in range(NETWORK_ROUNDS):
        moved, other, moduli = (high, low, heights) if turn % 2 else (low, high, widths)
        moved += _shares(keys, second_keys, other, moduli, turn=turn)
        moved -= moduli * (moved >= moduli)
    high *= widths
    high += low
    return high


def _backwards(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    widths = _ceil_sqrt(counts)
    heights = -(-counts // np.maximum(widths, 1))
    second_keys = second_keys_of(keys)
    high, low = np.divmod(numbers, np.maximum(widths, 1))
    for turn in range(NETWORK_ROUNDS - 1, -1, -1):
        moved, other, moduli = (high, low, heights) if turn % 2 else (low, high, widths)
        moved -= _shares(keys, second_keys, other, moduli, turn=turn)
        moved += moduli * (moved < 0)
    high *= widths
    high += low
    return high


def _shares(
    keys: NDArray[np.uint64],
    second_keys: NDArray[np.uint64],
    halves: NDArray[np.int64],
    moduli: NDArray[np.int64],
    *,
    turn: int | NDArray[np.int64],
) -> NDArray[np.int64]:
    # How far a round moves the other half of each number.
    counters = halves.view(np.uint64) + (np.asarray(turn) << _TURN_BITS).view(np.uint64)
    drawn = draw_each(keys, counters, second_keys)
    # A multiplication and a shift; a remainder takes five times as long.
    drawn >>= np.uint64(_DRAWN_BITS)
    drawn *= moduli.view(np.uint64)
    drawn >>= np.uint64(_DRAWN_BITS)
    return drawn.view(np.int64)


def _ceil_sqrt(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    # A float's root may be off by one; the corrections are exact in integers.
    roots = np.sqrt(numbers.astype(np.float64)).astype(np.int64)
    roots += roots * roots < numbers
    roots -= (roots - 1) * (roots - 1) >= numbers
    return roots
