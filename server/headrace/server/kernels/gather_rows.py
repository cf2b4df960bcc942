"""Gather the rows of a batch, compiled; see `headrace.server.kernels.compiled`."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.compiler import (
    BYTES_IN,
    BYTES_OUT,
    INTS_IN,
    INTS_OUT,
    SLOTS_IN,
    TABLE_IN,
    kernel,
)
from headrace.server.kernels.copy_bytes import (
    LONG_BYTES,
    PAST_BYTES,
    copy,
    copy_past,
    end_copies_past,
    fetch,
    fetch_all,
    fetch_spans,
)

_TILE = 64  # rows that are looked up together
_AHEAD = 24  # rows that are on their way while one is copied (measured: 16 to 32 are alike)


@kernel(
    BYTES_IN,
    SLOTS_IN,
    INTS_IN,
    INTS_IN,
    INTS_IN,
    INTS_IN,
    BYTES_OUT,
    result=nb.boolean,
)
def _gather_column(  # noqa: PLR0917 - the arrays that Numba wants one by one
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    field: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Gather the only column of a part: each row is copied when it has had time to come."""
    row_bytes, unit, at, size, to = field[1], field[2], field[3], field[4], field[5]
    is_past = out.size >= PAST_BYTES and size >= LONG_BYTES
    begins = np.empty(_AHEAD, np.int64)
    for coming in range(offsets.size + _AHEAD):
        i = coming - _AHEAD
        place = np.uint64(coming % _AHEAD)
        if i >= 0:
            if size == 8:  # noqa: PLR2004 - sizes that a processor moves at once
                copy(out, to + 8 * i, arena, begins[place], 8)
            elif size == 4:  # noqa: PLR2004
                copy(out, to + 4 * i, arena, begins[place], 4)
            elif is_past:
                copy_past(out, to + size * i, arena, begins[place], size)
            else:
                copy(out, to + size * i, arena, begins[place], size)
        if coming < offsets.size:
            base = bases[slot_of[blocks[coming]]] * unit
            begin = base + offsets[coming] * row_bytes
            if begin < 0 or begin > arena.size - row_bytes:
                return False
            begins[place] = begin + at
            fetch_all(arena, begin + at, size)
    if is_past:
        end_copies_past()
    return True


@kernel(
    BYTES_IN,
    SLOTS_IN,
    INTS_IN,
    INTS_IN,
    INTS_IN,
    TABLE_IN,
    BYTES_OUT,
    result=nb.boolean,
)
def _gather_columns(  # noqa: C901, PLR0917 - one loop, and the arrays that Numba wants one by one
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    fields: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Gather several columns of one part: rows come while those before them are taken apart."""
    row_bytes, unit = fields[0, 1], fields[0, 2]
    begins = np.empty((2, _TILE), np.int64)
    for coming in range(0, offsets.size + _TILE, _TILE):
        turn = (coming // _TILE) % 2
        for i in range(min(_TILE, offsets.size - coming)):
            base = bases[slot_of[blocks[coming + i]]] * unit
            begin = base + offsets[coming + i] * row_bytes
            if begin < 0 or begin > arena.size - row_bytes:
                return False
            begins[turn, i] = begin
            fetch_all(arena, begin, row_bytes)
        first = coming - _TILE
        rows = min(_TILE, offsets.size - first) if first >= 0 else 0
        for field in range(fields.shape[0]):
            at, size = fields[field, 3], fields[field, 4]
            to = fields[field, 5] + first * size
            if size == 4:  # noqa: PLR2004 - sizes that a processor moves at once
                for i in range(rows):
                    copy(out, to + 4 * i, arena, begins[1 - turn, i] + at, 4)
            elif size == 8:  # noqa: PLR2004
                for i in range(rows):
                    copy(out, to + 8 * i, arena, begins[1 - turn, i] + at, 8)
            elif size == 1:
                for i in range(rows):
                    out[to + i] = arena[begins[1 - turn, i] + at]
            else:
                for i in range(rows):
                    copy(out, to + size * i, arena, begins[1 - turn, i] + at, size)
    return True


@kernel(
    BYTES_IN,
    SLOTS_IN,
    TABLE_IN,
    INTS_IN,
    INTS_IN,
    TABLE_IN,
    BYTES_OUT,
    result=nb.boolean,
)
def gather(  # noqa: PLR0917 - the arrays that Numba wants one by one
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    fields: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Gather columns of fixed size.

    Args:
        arena: Where the blocks lie.
        slot_of: The slot of each block.
        bases: ``(parts, slots)``: where each part of the block in a slot begins.
        blocks: The block of each sample.
        offsets: Its place in that block.
        fields: ``(columns, 6)``: part; bytes of a row of it; bytes that its bases count in; where
            the value begins in a row; its bytes; where the column begins in ``out``. Ordered by
            part.
        out: Takes the columns.

    Returns:
        Whether all of it lies in the arena and in ``out``; if not, the tables are wrong.
    """
    for field in range(fields.shape[0]):
        end = fields[field, 5] + offsets.size * fields[field, 4]
        if fields[field, 5] < 0 or end > out.size:
            return False
    begin = 0
    while begin < fields.shape[0]:
        part, end = fields[begin, 0], begin + 1
        while end < fields.shape[0] and fields[end, 0] == part:
            end += 1
        if end == begin + 1:
            is_found = _gather_column(
                arena, slot_of, bases[part], blocks, offsets, fields[begin], out
            )
        else:
            is_found = _gather_columns(
                arena, slot_of, bases[part], blocks, offsets, fields[begin:end], out
            )
        if not is_found:
            return False
        begin = end
    return True


@kernel(
    BYTES_IN,
    SLOTS_IN,
    TABLE_IN,
    INTS_IN,
    INTS_IN,
    nb.int64,
    nb.int64,
    INTS_OUT,
    INTS_OUT,
    INTS_OUT,
    result=nb.boolean,
)
def find_values(  # noqa: PLR0917 - the arrays that Numba wants one by one
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    row_bytes: int,
    at: int,
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    edges: NDArray[np.int64],
) -> bool:
    """Find the values of a ragged column.

    Args:
        arena: As for `gather`.
        slot_of: As for `gather`.
        bases: As for `gather`.
        blocks: As for `gather`.
        offsets: As for `gather`.
        row_bytes: Bytes of a packed row.
        at: Where the value's span lies in it.
        begins: Takes where each value begins in the arena.
        lengths: Takes its bytes.
        edges: Takes where each begins, and the last ends, when they lie back to back.

    Returns:
        As `gather`.
    """
    words = arena[: arena.size // 8 * 8].view(np.int64)
    edges[0] = 0
    for first in range(0, offsets.size, _TILE):
        rows = min(_TILE, offsets.size - first)
        for i in range(first, first + rows):
            place = (bases[0, slot_of[blocks[i]]] + offsets[i]) * row_bytes + at
            if place < 0 or place % 8 or place > arena.size - 16:
                return False
            begins[i] = place
            fetch(arena, place)
        for i in range(first, first + rows):
            word = begins[i] // 8
            begins[i] = words[word]
            length = words[word + 1]
            if length < 0 or begins[i] < 0 or begins[i] > arena.size - length:
                return False
            lengths[i] = length
            edges[i + 1] = edges[i] + length
    return True


@kernel(BYTES_IN, INTS_IN, INTS_IN, BYTES_OUT, result=nb.boolean)
def copy_spans(
    memory: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Copy spans of bytes back to back; return whether all lie in the memory and fit."""
    at = 0
    is_past = out.size >= PAST_BYTES
    for first in range(0, begins.size, _TILE):
        last = min(first + _TILE, begins.size)
        if not fetch_spans(memory, begins[first:last], lengths[first:last]):
            return False
        for i in range(first, last):
            if lengths[i] > out.size - at:
                return False
            if is_past and lengths[i] >= LONG_BYTES:
                copy_past(out, at, memory, begins[i], lengths[i])
            else:
                copy(out, at, memory, begins[i], lengths[i])
            at += lengths[i]
    if is_past:
        end_copies_past()
    return True
