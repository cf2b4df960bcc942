"""Gather the samples of a batch with NumPy and Arrow, a whole column at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.server.cache.memory.arena import Memory, as_items
from headrace.server.layout.block_layout import (
    TAKE_BYTES,
    BlockLayout,
    BlockPart,
    Field,
    Projection,
)
from headrace.server.layout.wire_columns import refuse_large

# NumPy lets other threads run while it copies, but takes 1 us longer than slicing a memoryview. A
# copy of this size takes some 100 us (arbitrary).
_LONG_BYTES = 1 << 20


# Made for each batch: a frozen dataclass would take three times as long.
class BlockRows(NamedTuple):
    """The samples of one batch in pinned blocks.

    Attributes:
        layout: The layout of the blocks.
        memory: The arena.
        slot_of: ``(blocks,) int32``: the slot of each block of the dataset.
        bases: ``(parts, slots) int64``: the base of each part of the block in a slot.
        blocks: ``(samples,) int64``: the block of each sample.
        offsets: ``(samples,) int64``: the index of each sample in its block.
    """

    layout: BlockLayout
    memory: Memory
    slot_of: NDArray[np.int32]
    bases: NDArray[np.int64]
    blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def packed(self, out: NDArray[np.uint8]) -> None:
        """Gather the packed rows into ``(samples, row_bytes) uint8``."""
        self.wide(0, out)

    def wide(self, part: int, out: NDArray[np.uint8], *, first: int = 0) -> None:
        """Gather a part of the samples from ``first`` on into ``(n, row_bytes) uint8``."""
        own = slice(first, first + len(out))
        # Indexing takes twice as long.
        slots = np.take(self.slot_of, self.blocks[own], mode="clip")
        bases = np.take(self.bases[part], slots, mode="clip")
        gather_part(self.memory, self.layout.parts[part], bases, self.offsets[own], out)


class StagedRows:
    """The samples of one batch, copied out of their blocks when these arrive.

    It makes one more copy than `BlockRows`, but never needs two blocks at the same time.

    Args:
        projection: The columns to copy.
        sample_count: Rows of the batch.
        max_bytes: The most bytes of the batch.
        claim: Claims memory for all copies before it is used.
    """

    def __init__(
        self,
        projection: Projection,
        sample_count: int,
        *,
        max_bytes: int,
        claim: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._projection = projection
        self._claim = claim
        self._count = sample_count
        parts = projection.layout.parts
        self._bases = np.zeros((len(parts), 1), np.int64)
        starts, end = {}, 0
        for part in (0, *projection.wide_parts):
            row_bytes = parts[part].row_bytes
            unit = row_bytes if parts[part].aligned and row_bytes else 1
            self._bases[part] = -(-end // unit)
            starts[part] = int(self._bases[part, 0]) * unit
            end = starts[part] + sample_count * row_bytes
        # While blocks are copied, there is a second copy of one part at a time.
        self._scratch_bytes = sample_count * max(parts[part].row_bytes for part in starts)
        self._rows_bytes = end
        self._pieces: list[NDArray[np.uint8]] = []
        self._piece_bytes = 0
        claim(self._nbytes(0))
        self._memory = np.empty(end, np.uint8)
        self._parts = {
            part: self._memory[start : start + sample_count * parts[part].row_bytes].reshape(
                sample_count, parts[part].row_bytes
            )
            for part, start in starts.items()
        }
        self._max_bytes = max_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the copies, including another copy of all if there are ragged values."""
        return self._nbytes(self._piece_bytes)

    def in_one_block(self) -> BlockRows:
        """Return the samples as one block with all of them, once all are copied."""
        memory = self._memory
        if self._piece_bytes:
            memory = np.concatenate([memory, *self._pieces])
        return BlockRows(
            self._projection.layout,
            Memory(memory),
            slot_of=np.zeros(1, np.int32),
            bases=self._bases,
            blocks=np.zeros(self._count, np.int64),
            offsets=np.arange(self._count),
        )

    def add(self, places: NDArray[np.intp], rows: Rows) -> None:
        """Copy samples.

        Args:
            places: ``(samples,)``: the row of each sample in the batch.
            rows: The samples.
        """
        parts = self._projection.layout.parts
        for part in self._projection.wide_parts:
            scratch = np.empty((places.size, parts[part].row_bytes), np.uint8)
            rows.wide(part, scratch)
            self._parts[part][places] = scratch
        if self._projection.packed:
            scratch = np.empty((places.size, parts[0].row_bytes), np.uint8)
            rows.packed(scratch)
            self._copy_ragged(scratch, rows.memory)
            self._parts[0][places] = scratch

    def _nbytes(self, piece_bytes: int) -> int:
        joined = self._rows_bytes + piece_bytes if piece_bytes else 0
        return self._rows_bytes + self._scratch_bytes + piece_bytes + joined

    def _copy_ragged(self, packed: NDArray[np.uint8], memory: Memory) -> None:
        """Copy ragged values, and point their spans at the copies."""
        for entry in self._projection.fields:
            if entry.column.is_tensor:
                continue
            starts, lengths = spans(packed, entry)
            size = int(lengths.sum())
            refuse_large(self._piece_bytes + size, self._max_bytes)
            self._claim(self._nbytes(self._piece_bytes + size))
            piece = np.empty(size, np.uint8)
            gather_spans(memory, starts, lengths, piece)
            starts[:] = np.cumsum(lengths) - lengths + self._rows_bytes + self._piece_bytes
            self._pieces.append(piece)
            self._piece_bytes += piece.size


class Rows(Protocol):
    """The samples of one batch, in blocks of one layout or of several."""

    @property
    def memory(self) -> Memory:
        """The memory that the spans of ragged values point into."""

    def packed(self, out: NDArray[np.uint8]) -> None:
        """Gather the packed rows into ``(samples, row_bytes) uint8``."""

    def wide(self, part: int, out: NDArray[np.uint8], *, first: int = 0) -> None:
        """Gather a part of the samples from ``first`` on into ``(n, row_bytes) uint8``."""


def spans(packed: NDArray[np.uint8], entry: Field) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and the lengths in bytes of a ragged column's values, as views."""
    pairs = packed[:, entry.offset : entry.offset + 16].view(np.int64)
    return pairs[:, 0], pairs[:, 1]


def gather_spans(
    memory: Memory,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Copy spans of memory end to end.

    Args:
        memory: The memory of the spans.
        starts: ``(spans,) int64``: where each span starts, in bytes.
        lengths: ``(spans,) int64``: the length of each span, in bytes.
        out: ``(sum of lengths,) uint8``: the destination.
    """
    if not out.size:
        return
    if out.size >= TAKE_BYTES * lengths.size:
        _copy_each(memory, starts, lengths, out)
    else:
        _take_spans(memory, starts, lengths, out)


def gather_part(
    memory: Memory,
    part: BlockPart,
    bases: NDArray[np.int64],
    offsets: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Gather one part of samples.

    Args:
        memory: The memory of the samples.
        part: The part.
        bases: ``(samples,) int64``: the base of the part in the block of each sample.
        offsets: ``(samples,) int64``: the index of each sample in its block.
        out: ``(samples, row_bytes) uint8``: the destination.
    """
    if not part.row_bytes or not offsets.size:
        return
    if part.aligned:
        # All modes but "clip" gather into a temporary buffer first.
        rows = memory.rows(part.row_bytes)
        np.take(rows, bases + offsets, out=as_items(out, part.row_bytes), mode="clip")
        return
    lengths = np.full(offsets.size, part.row_bytes, np.int64)
    _copy_each(memory, bases + offsets * part.row_bytes, lengths, out.reshape(-1))


def _copy_each(
    memory: Memory,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    source, target, at = memory.view, out.data, 0
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if length < _LONG_BYTES:
            target[at : at + length] = source[start : start + length]
        else:
            out[at : at + length] = memory.array[start : start + length]
        at += length


def _take_spans(
    memory: Memory,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Let Arrow copy the spans, as every second row of an array over the whole memory.

    Rows 1, 3, 5, … of that array are the spans. The rows between them cover the memory between two
    spans, may have any length, even a negative one, and are never taken. Arrow sizes its result by
    the mean length of all rows, which it computes from the first and the last offset. These two are
    chosen so that the size is right, or too small if the memory is hardly larger than the spans,
    which costs a copy.
    """
    count = lengths.size
    edges = np.empty(2 * count + 2, np.int64)
    edges[0] = 0
    edges[1:-1:2] = starts
    np.add(starts, lengths, out=edges[2::2])
    edges[-1] = min(out.size * (2 * count + 1) // count, memory.array.size)
    everything = pa.Array.from_buffers(
        pa.large_binary(), 2 * count + 1, [None, pa.py_buffer(edges.data), memory.buffer]
    )
    wanted: pa.Int64Array = pa.array(np.arange(1, 2 * count, 2), pa.int64())
    taken = pc.take(everything, wanted, boundscheck=False).buffers()[2]
    assert taken is not None
    np.copyto(out, np.frombuffer(memoryview(taken), np.uint8, out.size))
