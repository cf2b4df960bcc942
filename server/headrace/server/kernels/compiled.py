"""What a batch costs most, compiled: loops that run outside of Python's lock.

Only `headrace.server.kernels.loader` imports this module, because its import compiles, or loads
what an earlier process compiled. Every function does what a NumPy path beside its caller does, and
the tests hold the two equal; none of them reads outside of the arrays that it is given.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.compiler import (
    BUCKETS_IN,
    COUNTS,
    DRAWS_IN,
    DRAWS_OUT,
    HALVES,
    INTS_IN,
    INTS_OUT,
    SLOTS_IN,
    TABLE_IN,
    TABLE_OUT,
    WORDS_OUT,
    kernel,
)
from headrace.server.kernels.gather_rows import copy_spans, gather
from headrace.server.kernels.write_batches import measure_batches, write_batches
from headrace.server.kernels.write_parts import copy_spans_to_parts, end_hash, hash_parts
from headrace.server.kernels.xxh3 import BLOCK_BYTES, FIRST_SUMS, xxh3

_WALKED = 256  # numbers that go through a network together (measured: 8 ns each; 27 one by one)

__all__ = [
    "BLOCK_BYTES",
    "FIRST_SUMS",
    "ask",
    "copy_spans",
    "copy_spans_to_parts",
    "distinct",
    "end_hash",
    "find_places",
    "find_spans",
    "gather",
    "hash_parts",
    "measure_batches",
    "network_tables",
    "pin",
    "pin_all",
    "sorting_words",
    "unpin",
    "walk",
    "write_batches",
    "xxh3",
]


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


@kernel(DRAWS_IN, nb.int64, nb.int64, INTS_IN, INTS_OUT)
def walk(
    tables: NDArray[np.uint16],
    width: int,
    count: int,
    places: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Do what `headrace.order` does with NumPy: permute places through a network's tables."""
    height = -(-count // width)
    columns, rows = np.uint32(width), np.uint32(height)
    highs, lows = np.empty(_WALKED, np.uint32), np.empty(_WALKED, np.uint32)
    # Round by round for many numbers, not number by number: no round waits for the one before it.
    for first in range(0, places.size, _WALKED):
        here = min(_WALKED, places.size - first)
        for i in range(here):
            high = np.uint64(places[first + i]) // np.uint64(width)
            highs[i] = high
            lows[i] = np.uint64(places[first + i]) - high * np.uint64(width)
        _turn_all(tables, columns, rows, highs[:here], lows[:here])
        for i in range(here):
            number = np.int64(highs[i]) * width + np.int64(lows[i])
            while number >= count:
                # In the surplus of the rectangle; few are.
                highs[0], lows[0] = number // width, number % width
                _turn_all(tables, columns, rows, highs[:1], lows[:1])
                number = np.int64(highs[0]) * width + np.int64(lows[0])
            out[first + i] = number


@kernel(nb.uint64, result=nb.uint64)
def _mix(word: np.uint64) -> np.uint64:
    """Mix the bits of a word: ``docs/order.md`` has the function."""
    word = np.uint64(word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = np.uint64(word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(word ^ (word >> np.uint64(31)))


@kernel(nb.uint64, nb.uint64, nb.int64, WORDS_OUT)
def sorting_words(
    key: np.uint64, second_key: np.uint64, number_bits: int, out: NDArray[np.uint64]
) -> None:
    """Make words that, sorted, hold a permutation of the order in their lowest bits."""
    shift = np.uint64(number_bits)
    for i in range(out.size):
        drawn = _mix(np.uint64(_mix(np.uint64(key + np.uint64(i))) ^ second_key))
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
            counter = np.uint64(first + np.uint64(half))
            drawn = _mix(np.uint64(_mix(np.uint64(key + counter)) ^ second_key))
            share = np.uint64((drawn >> np.uint64(32)) * np.uint64(modulus))
            out[turn, half] = share >> np.uint64(32)


@kernel(INTS_IN, INTS_IN, nb.int64, INTS_OUT, INTS_OUT, result=nb.boolean)
def distinct(
    blocks: NDArray[np.int64],
    ends: NDArray[np.int64],
    most: int,
    out: NDArray[np.int64],
    out_ends: NDArray[np.int64],
) -> bool:
    """Find the distinct blocks of each of several batches, ascending.

    Args:
        blocks: Of all batches, one after the other.
        ends: Where those of each batch end.
        most: Greatest span of blocks that is worth counting.
        out: Takes the blocks, one batch after the other; as long as ``blocks``.
        out_ends: Takes where those of each batch end.

    Returns:
        Whether it was done; not if the blocks lie further apart.
    """
    if not blocks.size:
        out_ends[:] = 0
        return True
    first = last = blocks[0]
    for block in blocks:
        first, last = min(first, block), max(last, block)
    if last - first >= most:
        return False
    seen = np.zeros(last - first + 1, np.uint8)
    begin = at = 0
    for batch in range(ends.size):
        low, high = last - first, 0
        for i in range(begin, ends[batch]):
            place = blocks[i] - first
            seen[place] = 1
            low, high = min(low, place), max(high, place)
        for place in range(low, high + 1):
            if seen[place]:
                out[at] = place + first
                seen[place] = 0
                at += 1
        begin = ends[batch]
        out_ends[batch] = at
    return True


@kernel(COUNTS, INTS_OUT, SLOTS_IN, nb.int64, nogil=False)
def pin(
    pins: NDArray[np.int32], last_use: NDArray[np.int64], slots: NDArray[np.int32], now: int
) -> None:
    """Count one reader more of each slot, and note when it began."""
    for slot in slots:
        if 0 <= slot < pins.size:
            pins[slot] += 1
            last_use[slot] = now


@kernel(SLOTS_IN, INTS_IN, COUNTS, INTS_OUT, nb.int64, COUNTS, result=nb.int64, nogil=False)
def pin_all(  # noqa: PLR0917 - the arrays that Numba wants one by one
    slot_of: NDArray[np.int32],
    blocks: NDArray[np.int64],
    pins: NDArray[np.int32],
    last_use: NDArray[np.int64],
    now: int,
    slots: NDArray[np.int32],
) -> int:
    """Find the slots of blocks, and `pin` them if all are cached; return how many are."""
    hits = 0
    for i in range(blocks.size):
        slots[i] = slot_of[blocks[i]] if 0 <= blocks[i] < slot_of.size else 0
        hits += 0 < slots[i] < pins.size
    if hits == blocks.size:
        for slot in slots:
            pins[slot] += 1
            last_use[slot] = now
    return hits


@kernel(SLOTS_IN, INTS_IN, INTS_OUT, nb.int64, result=nb.boolean, nogil=False)
def ask(
    slot_of: NDArray[np.int32], blocks: NDArray[np.int64], asked: NDArray[np.int64], ranking: int
) -> bool:
    """Note that blocks will be read, if all are cached; return whether they are."""
    for block in blocks:
        if not 0 <= block < slot_of.size or not 0 < slot_of[block] < asked.size:
            return False
    for block in blocks:
        slot = slot_of[block]
        # It may have gone meanwhile.
        if 0 < slot < asked.size:
            asked[slot] = ranking
    return True


@kernel(COUNTS, SLOTS_IN, nogil=False)
def unpin(pins: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
    """Count one reader less of each slot."""
    for slot in slots:
        if 0 <= slot < pins.size:
            pins[slot] -= 1


@kernel(INTS_IN, BUCKETS_IN, nb.int64, INTS_IN, INTS_OUT, INTS_OUT)
def find_spans(  # noqa: PLR0917 - the arrays that Numba wants one by one
    starts: NDArray[np.int64],
    buckets: NDArray[np.uint16],
    shift: int,
    ordinals: NDArray[np.int64],
    spans: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> None:
    """Do what `headrace.storage.search_starts` does with NumPy."""
    first, last = starts[0], starts.size - 2
    for i in range(ordinals.size):
        ordinal = ordinals[i]
        place = min(max((ordinal - first) >> shift, 0), buckets.size - 1)
        span = np.int64(buckets[np.uint64(place)])
        while span < last and starts[span + 1] <= ordinal:
            span += 1
        spans[i] = span
        offsets[i] = ordinal - starts[span]


@kernel(DRAWS_IN, nb.int64, nb.int64, nb.int64, HALVES, HALVES, INTS_OUT)
def _walk_range(  # noqa: PLR0917 - the arrays that Numba wants one by one
    tables: NDArray[np.uint16],
    width: int,
    count: int,
    first: int,
    highs: NDArray[np.uint32],
    lows: NDArray[np.uint32],
    out: NDArray[np.int64],
) -> None:
    """Do what `walk` does for consecutive places, as many as ``out`` takes."""
    columns, rows = np.uint32(width), np.uint32(-(-count // width))
    high, low = np.uint32(first // width), np.uint32(first % width)
    for i in range(out.size):
        highs[i], lows[i] = high, low
        low += np.uint32(1)
        if low == columns:
            low = np.uint32(0)
            high += np.uint32(1)
    _turn_all(tables, columns, rows, highs[: out.size], lows[: out.size])
    for i in range(out.size):
        number = np.int64(highs[i]) * width + np.int64(lows[i])
        while number >= count:
            # In the surplus of the rectangle; few are.
            highs[0], lows[0] = number // width, number % width
            _turn_all(tables, columns, rows, highs[:1], lows[:1])
            number = np.int64(highs[0]) * width + np.int64(lows[0])
        out[i] = number


@kernel(
    TABLE_IN,
    INTS_IN,
    DRAWS_IN,
    nb.int64,
    nb.int64,
    TABLE_IN,
    BUCKETS_IN,
    nb.int64,
    INTS_IN,
    TABLE_OUT,
    INTS_OUT,
    INTS_OUT,
)
def find_places(  # noqa: PLR0917 - one loop, and the arrays that Numba wants one by one
    ranges: NDArray[np.int64],
    whole: NDArray[np.int64],
    tables: NDArray[np.uint16],
    width: int,
    count: int,
    pieces: NDArray[np.int64],
    buckets: NDArray[np.uint16],
    shift: int,
    blocks: NDArray[np.int64],
    found: NDArray[np.int64],
    touched: NDArray[np.int64],
    touched_ends: NDArray[np.int64],
) -> None:
    """Find the samples at places of a window of the order, and their blocks.

    Args:
        ranges: ``(batches, 2)``: places ``[first, end)`` of the window that make a batch.
        whole: The window's permutation, if it is small enough to be made as a whole.
        tables: Of its network, if not.
        width: As for `walk`.
        count: Samples of the window.
        pieces: ``(pieces + 1, 4)``: consecutive samples of one block, as they lie before the
            window is permuted: place of the first, its id, its place in its block, and which of
            the blocks; of the last row, where the pieces end.
        buckets: As for `find_spans`, of the pieces.
        shift: As for `find_spans`.
        blocks: The window's distinct blocks, ascending.
        found: ``(3, samples)``: takes ids, blocks and places in blocks, batch after batch.
        touched: Takes the distinct blocks of each batch, ascending, batch after batch.
        touched_ends: Takes where those of each batch end.
    """
    seen = np.zeros(blocks.size, np.uint8)
    numbers = np.empty(_WALKED, np.int64)
    highs, lows = np.empty(_WALKED, np.uint32), np.empty(_WALKED, np.uint32)
    last = pieces.shape[0] - 2
    at = ended = 0
    for batch in range(ranges.shape[0]):
        end = min(ranges[batch, 1], count)
        for first in range(max(0, ranges[batch, 0]), end, _WALKED):
            size = min(_WALKED, end - first, found.shape[1] - at)
            if whole.size == count:
                numbers[:size] = whole[first : first + size]
            else:
                _walk_range(tables, width, count, first, highs, lows, numbers[:size])
            for i in range(size):
                place = numbers[i]
                bucket = min(np.uint64(place >> shift), np.uint64(buckets.size - 1))
                piece = np.int64(buckets[bucket])
                while piece < last and pieces[np.uint64(piece + 1), 0] <= place:
                    piece += 1
                row = np.uint64(piece)
                further = place - pieces[row, 0]
                own = np.uint64(pieces[row, 3])
                seen[own] = 1
                found[0, at + i] = pieces[row, 1] + further
                found[1, at + i] = blocks[own]
                found[2, at + i] = pieces[row, 2] + further
            at += size
        for index in range(blocks.size):
            if seen[index]:
                touched[ended] = blocks[index]
                ended += 1
                seen[index] = 0
        touched_ends[batch] = ended
