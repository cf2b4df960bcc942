"""The samples at places of a step of the order, compiled."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.compiler import (
    DRAWS_IN,
    INTS_IN,
    INTS_OUT,
    SLOTS_IN,
    TABLE_IN,
    TABLE_OUT,
    kernel,
)
from headrace.server.kernels.permute import WALKED, draw, walk_range


@kernel(TABLE_IN, result=nb.int64)
def _samples_each(entries: NDArray[np.int64]) -> int:
    """Return how many samples all entries of a step have; 0 if they have different numbers."""
    samples = entries[1, 0]
    for entry in range(entries.shape[0]):
        if entries[entry, 0] != entry * samples:
            return 0
    return int(samples)


@kernel(TABLE_IN, nb.int64, nb.int64, result=nb.int64)
def _entry_of(entries: NDArray[np.int64], samples: int, slot: int) -> int:
    """Return the entry that has a slot."""
    if samples:
        return int(np.uint64(slot) // np.uint64(samples))
    low, high = np.int64(0), entries.shape[0] - 2
    while low < high:
        middle = (low + high + 1) >> 1
        if entries[middle, 0] <= slot:
            low = middle
        else:
            high = middle - 1
    return int(low)


@kernel(TABLE_IN, nb.int64, nb.uint64, nb.uint64, TABLE_IN, INTS_OUT)
def _deal(  # noqa: PLR0917 - the arrays that Numba wants one by one
    entries: NDArray[np.int64],
    samples: int,
    key: np.uint64,
    second_key: np.uint64,
    inverses: NDArray[np.int64],
    slots: NDArray[np.int64],
) -> None:
    """Put the offset of each slot's sample in its place."""
    for i in range(slots.size):
        slot = slots[i]
        entry = np.uint64(_entry_of(entries, samples, slot))
        slices = entries[entry, 2]
        place = entries[entry, 1] + (slot - entries[entry, 0]) * slices
        if slices > 1:
            drawn = draw(key, second_key, np.uint64(place))
            slope = ((drawn >> np.uint64(32)) * np.uint64(slices - 1)) >> np.uint64(32)
            turn = ((drawn & np.uint64(0xFFFFFFFF)) * np.uint64(slices)) >> np.uint64(32)
            past = np.uint64(entries[entry, 3] + slices) - turn
            inverse = np.uint64(inverses[np.uint64(slices), slope + np.uint64(1)])
            place += np.int64(np.uint32(past * inverse) % np.uint32(slices))
        slots[i] = place


@kernel(
    TABLE_IN,
    INTS_IN,
    DRAWS_IN,
    nb.int64,
    TABLE_IN,
    nb.uint64,
    nb.uint64,
    TABLE_IN,
    TABLE_IN,
    SLOTS_IN,
    nb.int64,
    INTS_IN,
    TABLE_OUT,
    INTS_OUT,
    INTS_OUT,
)
def find_dealt(  # noqa: PLR0917 - one loop, and the arrays that Numba wants one by one
    ranges: NDArray[np.int64],
    whole: NDArray[np.int64],
    tables: NDArray[np.uint16],
    width: int,
    entries: NDArray[np.int64],
    key: np.uint64,
    second_key: np.uint64,
    inverses: NDArray[np.int64],
    pieces: NDArray[np.int64],
    buckets: NDArray[np.int32],
    shift: int,
    blocks: NDArray[np.int64],
    found: NDArray[np.int64],
    touched: NDArray[np.int64],
    touched_ends: NDArray[np.int64],
) -> None:
    """Find the samples at places of a step of the order, and their blocks.

    Args:
        ranges: ``(batches, 2)``: places ``[first, end)`` of the step that make a batch.
        whole: The step's permutation, if it is small enough to be made as a whole.
        tables: Of its network, if not.
        width: As for `walk`.
        entries: As `headrace.order.Step.entries`, offsets counted from that of the first piece.
        key: Of the lines, for offsets counted so.
        second_key: The key's second half.
        inverses: As `headrace.order.LINE_INVERSES`.
        pieces: ``(pieces + 1, 4)``: consecutive samples of one block, as they lie in the layout:
            offset of the first, its id, its place in its block, and which of the blocks; of the
            last row, where the pieces end.
        buckets: As for `find_spans`, of the pieces.
        shift: As for `find_spans`.
        blocks: The step's distinct blocks, ascending.
        found: ``(3, samples)``: takes ids, blocks and places in blocks, batch after batch.
        touched: Takes the distinct blocks of each batch, ascending, batch after batch.
        touched_ends: Takes where those of each batch end.
    """
    seen = np.zeros(blocks.size, np.uint8)
    numbers = np.empty(WALKED, np.int64)
    highs, lows = np.empty(WALKED, np.uint32), np.empty(WALKED, np.uint32)
    last, count = pieces.shape[0] - 2, entries[-1, 0]
    samples = _samples_each(entries)
    at = ended = 0
    for batch in range(ranges.shape[0]):
        end = min(ranges[batch, 1], count)
        for first in range(max(0, ranges[batch, 0]), end, WALKED):
            size = min(WALKED, end - first, found.shape[1] - at)
            if whole.size == count:
                numbers[:size] = whole[first : first + size]
            else:
                walk_range(tables, width, count, first, highs, lows, numbers[:size])
            _deal(entries, samples, key, second_key, inverses, numbers[:size])
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
