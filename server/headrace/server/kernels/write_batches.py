"""Measure and write several batches in one call, compiled; see `headrace.server.kernels.compiled`.

Python's lock is given away once for all of them, and whatever takes it meanwhile finds time.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from headrace.payload import ALIGNMENT, OFFSET_BYTES
from headrace.server.kernels.compiler import (
    BYTES_IN,
    INTS_IN,
    SLOTS_IN,
    TABLE_IN,
    TABLE_OUT,
    TABLES_IN,
    TABLES_OUT,
    kernel,
)
from headrace.server.kernels.copy_bytes import pointer
from headrace.server.kernels.gather_rows import copy_spans, find_values, gather
from headrace.server.kernels.xxh3 import xxh3


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # Numba has no types
def _put(out: NDArray[np.uint8], at: int, word: np.uint64) -> None:
    """Write a word where it need not be aligned; LLVM makes one store of it."""
    for byte in range(8):
        out[at + byte] = np.uint8(word >> np.uint64(8 * byte))


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # as above
def _put_offsets(edges: NDArray[np.int64], item_bytes: int, address: int) -> None:
    """Write where each row begins, and the last ends, in items of 1, 2, 4 or 8 bytes."""
    shift = 0
    while 1 << shift < item_bytes:
        shift += 1
    first = edges[0]
    # Byte by byte and with a division for each, 1,024 rows took some 28 us more.
    offsets = nb.carray(pointer(address), (edges.size,), np.int64)
    for row in range(edges.size):
        offsets[row] = (edges[row] - first) >> shift


@kernel(
    BYTES_IN,
    SLOTS_IN,
    TABLE_IN,
    INTS_IN,
    INTS_IN,
    nb.int64,
    TABLE_IN,
    TABLE_IN,
    TABLES_OUT,
    TABLE_OUT,
    TABLE_OUT,
    result=nb.boolean,
)
def measure_batches(  # noqa: PLR0917 - the arrays that Numba wants one by one
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    row_bytes: int,
    ragged: NDArray[np.int64],
    buffers: NDArray[np.int64],
    spans: NDArray[np.int64],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> bool:
    """Lay out batches of equally many rows.

    Args:
        arena: As for `gather`, of the rows of all batches, one batch after the other.
        slot_of: The same.
        bases: The same.
        blocks: The same.
        offsets: The same.
        row_bytes: Bytes of a packed row.
        ragged: ``(ragged columns, 3)``: where the value's span lies in a packed row; bytes of an
            element; the buffer of its offsets, which that of its values follows.
        buffers: ``(buffers, 2)``: bytes for each row, and besides them; below 0 if it has the
            values of that ragged column, counted from -1 down.
        spans: ``(ragged columns, 3, rows + 1)``: takes what `find_values` finds of each.
        begins: ``(batches, buffers)``: takes where each buffer begins in its payload.
        lengths: ``(batches, buffers)``: takes its bytes.

    Returns:
        As `gather`.
    """
    count = offsets.size // max(1, begins.shape[0])
    for column in range(ragged.shape[0]):
        found = spans[column]
        is_found = find_values(
            arena,
            slot_of,
            bases,
            blocks,
            offsets,
            row_bytes,
            ragged[column, 0],
            found[0, : offsets.size],
            found[1, : offsets.size],
            found[2],
        )
        if not is_found:
            return False
    for batch in range(begins.shape[0]):
        end = 0
        for buffer in range(buffers.shape[0]):
            length = buffers[buffer, 1]
            if length < 0:
                edges = spans[-1 - length, 2]
                length = edges[(batch + 1) * count] - edges[batch * count]
            else:
                length += count * buffers[buffer, 0]
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            begins[batch, buffer] = begin
            lengths[batch, buffer] = length
            end = begin + length
    return True


@kernel(
    BYTES_IN,
    SLOTS_IN,
    TABLE_IN,
    INTS_IN,
    INTS_IN,
    TABLE_IN,
    TABLE_IN,
    TABLES_IN,
    TABLE_IN,
    TABLE_IN,
    BYTES_IN,
    nb.int64,
    BYTES_IN,
    TABLE_IN,
    result=nb.boolean,
)
def write_batches(  # noqa: C901, PLR0911, PLR0917 - one loop over what a batch has
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    fields: NDArray[np.int64],
    ragged: NDArray[np.int64],
    spans: NDArray[np.int64],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    ids: NDArray[np.uint8],
    id_buffer: int,
    heads: NDArray[np.uint8],
    targets: NDArray[np.int64],
) -> bool:
    """Write the payloads of the batches that were measured last, and what precedes them.

    Args:
        arena: As for `measure_batches`, and so the others up to ``offsets``.
        slot_of: The same.
        bases: The same.
        blocks: The same.
        offsets: The same.
        fields: As for `gather`, but for the last column, which says the buffer.
        ragged: As for `measure_batches`, and so the following three.
        spans: The same.
        begins: The same.
        lengths: The same.
        ids: What the column of sample ids shows of all rows.
        id_buffer: Its buffer; below 0 without that column.
        heads: What precedes each payload, one after the other.
        targets: ``(batches, 4)``: the address of the payload, a multiple of 8 where it has ragged
            columns; its bytes; bytes of its head; the address that takes its hash, 0 for none.

    Returns:
        As `gather`.
    """
    placed = fields.copy()
    count = offsets.size // max(1, targets.shape[0])
    head_at = 0
    for batch in range(targets.shape[0]):
        address, size, head_bytes = targets[batch, 0], targets[batch, 1], targets[batch, 2]
        if head_at + head_bytes > heads.size:
            return False
        head = nb.carray(pointer(address - head_bytes), (head_bytes,), np.uint8)
        head[:] = heads[head_at : head_at + head_bytes]
        head_at += head_bytes
        out = nb.carray(pointer(address), (size,), np.uint8)
        end = 0
        for buffer in range(begins.shape[1]):
            begin = begins[batch, buffer]
            if begin < end or begin + lengths[batch, buffer] > size:
                return False
            out[end:begin] = 0
            end = begin + lengths[batch, buffer]
        own = slice(batch * count, (batch + 1) * count)
        for field in range(fields.shape[0]):
            placed[field, 5] = begins[batch, fields[field, 5]]
        if not gather(arena, slot_of, bases, blocks[own], offsets[own], placed, out):
            return False
        if id_buffer >= 0:
            begin, length = begins[batch, id_buffer], lengths[batch, id_buffer]
            if (batch + 1) * length > ids.size:
                return False
            out[begin : begin + length] = ids[batch * length : (batch + 1) * length]
        for column in range(ragged.shape[0]):
            found, buffer = spans[column], ragged[column, 2]
            if lengths[batch, buffer] != OFFSET_BYTES * (count + 1) or address % OFFSET_BYTES:
                return False
            edges = found[2, batch * count : (batch + 1) * count + 1]
            _put_offsets(edges, ragged[column, 1], address + begins[batch, buffer])
            begin = begins[batch, buffer + 1]
            values = out[begin : begin + lengths[batch, buffer + 1]]
            if not copy_spans(arena, found[0, own], found[1, own], values):
                return False
        if targets[batch, 3]:
            hash_to = nb.carray(pointer(targets[batch, 3]), (8,), np.uint8)
            _put(hash_to, 0, xxh3(out))
    return True
