"""Find rows for documents, and copy documents into rows, compiled; see `kernels.compiled`."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.compiler import BYTES_IN, BYTES_OUT, INTS_IN, TABLE_OUT, kernel
from headrace.server.kernels.copy_bytes import copy, fetch_all

_WORD = 64
_AHEAD = 8  # spans that are on their way while one is copied (arbitrary)


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # Numba has no types
def _lowest(word: np.uint64) -> int:
    """Return which bit of a word that is not 0 is the lowest set one."""
    bit = 0
    for step in (32, 16, 8, 4, 2, 1):
        if not word & ((np.uint64(1) << np.uint64(step)) - np.uint64(1)):
            word >>= np.uint64(step)
            bit += step
    return bit


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # as above
def _highest(word: np.uint64) -> int:
    """Return which bit of a word that is not 0 is the highest set one."""
    bit = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step):
            word >>= np.uint64(step)
            bit += step
    return bit


@nb.njit  # type: ignore[untyped-decorator]  # as above
def _first_from(mask: NDArray[np.uint64], summary: NDArray[np.uint64], bit: int) -> int:
    """Return the lowest set bit from ``bit`` on, or -1."""
    place = bit // _WORD
    word = mask[place] >> np.uint64(bit % _WORD)
    if word:
        first: int = bit + _lowest(word)
        return first
    place += 1
    group = place // _WORD
    if group >= summary.size:
        return -1
    word = (summary[group] >> np.uint64(place % _WORD)) << np.uint64(place % _WORD)
    while not word:
        group += 1
        if group == summary.size:
            return -1
        word = summary[group]
    place = group * _WORD + _lowest(word)
    lowest: int = place * _WORD + _lowest(mask[place])
    return lowest


@nb.njit  # type: ignore[untyped-decorator]  # as above
def _last(mask: NDArray[np.uint64], summary: NDArray[np.uint64]) -> int:
    """Return the highest set bit, or -1."""
    for group in range(summary.size - 1, -1, -1):
        if summary[group]:
            place = group * _WORD + _highest(summary[group])
            last: int = place * _WORD + _highest(mask[place])
            return last
    return -1


@kernel(
    INTS_IN,
    INTS_IN,
    INTS_IN,
    nb.int64,
    nb.int64,
    nb.int64,
    TABLE_OUT,
    result=nb.types.UniTuple(nb.int64, 2),
)
def best_fit(  # noqa: PLR0917 - the arrays that Numba wants one by one
    documents: NDArray[np.int64],
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    length: int,
    cut: int,
    most_rows: int,
    out: NDArray[np.int64],
) -> tuple[int, int]:
    """Do what `headrace.order.packing.best_fit` does.

    Args:
        documents: As it takes them, and so the others.
        begins: The same.
        sizes: The same; in [1, length].
        length: The same.
        cut: The same.
        most_rows: The same.
        out: ``(documents + most_rows, 4)``: takes the pieces.

    Returns:
        How many pieces and rows there are; -1 pieces if they need more rows.
    """
    mask = np.zeros(length // _WORD + 1, np.uint64)
    summary = np.zeros((mask.size - 1) // _WORD + 1, np.uint64)
    # The row that came last to each room, and for each row the one that came before it.
    last = np.full(length + 1, -1, np.int64)
    before = np.empty(most_rows, np.int64)
    one = np.uint64(1)
    rows = at = 0
    for i in range(documents.size):
        begin, size = begins[i], sizes[i]
        while size > 0:
            room = _first_from(mask, summary, size) if size <= length else -1
            if room < 0 and cut:
                room = _last(mask, summary)
                if room < cut:
                    room = -1
            if room < 0:
                if rows == most_rows:
                    return -1, rows
                row, room = rows, length
                rows += 1
            else:
                row = last[room]
                last[room] = before[row]
                if last[room] < 0:
                    place = room // _WORD
                    mask[place] &= ~(one << np.uint64(room % _WORD))
                    if not mask[place]:
                        summary[place // _WORD] &= ~(one << np.uint64(place % _WORD))
            taken = min(size, room)
            out[at, 0], out[at, 1], out[at, 2], out[at, 3] = row, documents[i], begin, taken
            at += 1
            left = room - taken
            if left:
                before[row] = last[left]
                last[left] = row
                place = left // _WORD
                mask[place] |= one << np.uint64(left % _WORD)
                summary[place // _WORD] |= one << np.uint64(place % _WORD)
            begin += taken
            size -= taken
    return at, rows


@kernel(BYTES_IN, INTS_IN, INTS_IN, INTS_IN, BYTES_OUT, result=nb.boolean)
def place_spans(
    memory: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Copy spans of bytes each to a place of its own.

    Args:
        memory: Where they lie.
        begins: Where each begins.
        lengths: How long each is.
        places: Where each goes.
        out: What they go into.

    Returns:
        Whether all of them lie in the memory and have room; else some are not copied.
    """
    for i in range(begins.size):
        size = lengths[i]
        # Nothing is added that could pass the greatest number.
        if size < 0 or begins[i] < 0 or begins[i] > memory.size - size:
            return False
        if places[i] < 0 or places[i] > out.size - size:
            return False
    for i in range(begins.size + _AHEAD):
        if i < begins.size:
            fetch_all(memory, begins[i], lengths[i])
        if i >= _AHEAD:
            copy(out, places[i - _AHEAD], memory, begins[i - _AHEAD], lengths[i - _AHEAD])
    return True
