"""Permutations of the order, compiled: networks and their tables, and words that are sorted."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.compiler import (
    DRAWS_IN,
    DRAWS_OUT,
    HALVES,
    INTS_IN,
    INTS_OUT,
    WORDS_OUT,
    kernel,
)

WALKED = 256  # numbers that go through a network together (measured: 8 ns each; 27 one by one)


@kernel(DRAWS_IN, nb.uint32, nb.uint32, HALVES, HALVES)
def _turn_all(
    tables: NDArray[np.uint16],
    columns: np.uint32,
    rows: np.uint32,
    highs: NDArray[np.uint32],
    lows: NDArray[np.uint32],
) -> None:
    """Send numbers, given as two halves each, once through all rounds of a network."""
    for turn in range(0, tables.shape[0], 2):
        for i in range(highs.size):
            # What falls below zero wraps around and is the greater.
            low = np.uint32(lows[i] + np.uint32(tables[turn, np.uint64(highs[i])]))
            low = min(low, np.uint32(low - columns))
            high = np.uint32(highs[i] + np.uint32(tables[turn + 1, np.uint64(low)]))
            highs[i] = min(high, np.uint32(high - rows))
            lows[i] = low


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # Numba has no types
def _turn_numbers(  # noqa: PLR0917 - the arrays that Numba wants one by one
    tables: NDArray[np.uint16],
    width: int,
    count: int,
    highs: NDArray[np.uint32],
    lows: NDArray[np.uint32],
    out: NDArray[np.int64],
) -> None:
    """Send numbers, given as two halves each, through a network until they are below `count`."""
    columns, rows = np.uint32(width), np.uint32(-(-count // width))
    _turn_all(tables, columns, rows, highs, lows)
    for i in range(out.size):
        number = np.int64(highs[i]) * width + np.int64(lows[i])
        while number >= count:
            # In the surplus of the rectangle; few are.
            highs[0], lows[0] = number // width, number % width
            _turn_all(tables, columns, rows, highs[:1], lows[:1])
            number = np.int64(highs[0]) * width + np.int64(lows[0])
        out[i] = number


@kernel(DRAWS_IN, nb.int64, nb.int64, INTS_IN, INTS_OUT)
def walk(
    tables: NDArray[np.uint16],
    width: int,
    count: int,
    places: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Do what `headrace.order` does with NumPy: permute places through a network's tables."""
    highs, lows = np.empty(WALKED, np.uint32), np.empty(WALKED, np.uint32)
    # Round by round for many numbers, not number by number: no round waits for the one before it.
    for first in range(0, places.size, WALKED):
        here = min(WALKED, places.size - first)
        for i in range(here):
            high = np.uint64(places[first + i]) // np.uint64(width)
            highs[i] = high
            lows[i] = np.uint64(places[first + i]) - high * np.uint64(width)
        _turn_numbers(tables, width, count, highs[:here], lows[:here], out[first : first + here])


@kernel(nb.uint64, result=nb.uint64)
def _mix(word: np.uint64) -> np.uint64:
    """Mix the bits of a word: ``docs/order.md`` has the function."""
    word = np.uint64(word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = np.uint64(word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(word ^ (word >> np.uint64(31)))


@kernel(nb.uint64, nb.uint64, nb.uint64, result=nb.uint64)
def draw(key: np.uint64, second_key: np.uint64, counter: np.uint64) -> np.uint64:
    """Draw a number of a key: ``docs/order.md`` has the function."""
    return np.uint64(_mix(np.uint64(_mix(np.uint64(key + counter)) ^ second_key)))


@kernel(nb.uint64, nb.uint64, nb.int64, WORDS_OUT)
def sorting_words(
    key: np.uint64, second_key: np.uint64, number_bits: int, out: NDArray[np.uint64]
) -> None:
    """Make words that, sorted, hold a permutation of the order in their lowest bits."""
    shift = np.uint64(number_bits)
    for i in range(out.size):
        drawn = draw(key, second_key, np.uint64(i))
        out[i] = np.uint64((drawn >> np.uint64(32)) << shift) | np.uint64(i)


@kernel(nb.uint64, nb.uint64, nb.int64, nb.int64, DRAWS_OUT)
def network_tables(
    key: np.uint64, second_key: np.uint64, width: int, height: int, out: NDArray[np.uint16]
) -> None:
    """Make the tables of a `headrace.order.Network`: what each round adds, by the other half."""
    for turn in range(out.shape[0]):
        size, modulus = (width, height) if turn % 2 else (height, width)
        first = np.uint64(np.uint64(turn) << np.uint64(56))
        for half in range(min(size, out.shape[1])):
            drawn = draw(key, second_key, np.uint64(first + np.uint64(half)))
            share = np.uint64((drawn >> np.uint64(32)) * np.uint64(modulus))
            out[turn, half] = share >> np.uint64(32)


@kernel(DRAWS_IN, nb.int64, nb.int64, nb.int64, HALVES, HALVES, INTS_OUT)
def walk_range(  # noqa: PLR0917 - the arrays that Numba wants one by one
    tables: NDArray[np.uint16],
    width: int,
    count: int,
    first: int,
    highs: NDArray[np.uint32],
    lows: NDArray[np.uint32],
    out: NDArray[np.int64],
) -> None:
    """Do what `walk` does for consecutive places, as many as ``out`` takes."""
    columns = np.uint32(width)
    high, low = np.uint32(first // width), np.uint32(first % width)
    for i in range(out.size):
        highs[i], lows[i] = high, low
        low += np.uint32(1)
        if low == columns:
            low = np.uint32(0)
            high += np.uint32(1)
    _turn_numbers(tables, width, count, highs[: out.size], lows[: out.size], out)
