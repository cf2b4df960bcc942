"""Assemble a batch: gathered columns into one contiguous payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.server._block import Field
from headrace.server._columns import SAMPLE_ID_COLUMN, WireColumn
from headrace.server._gather import Projection, Rows, gather_spans, refuse_large, spans
from headrace.server._payload import ALIGNMENT, PayloadLayout, layout_of


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """The bytes of one batch.

    Attributes:
        buffer_bytes: The length of each buffer.
        view: The payload; the assembler's until it assembles the next batch.
        xxh3: XXH3-64 of it.
    """

    buffer_bytes: tuple[int, ...]
    view: memoryview
    xxh3: int


class Assembler:
    """Assembles the batches of one stream, one after another, in one reused buffer.

    Not safe for several threads.

    Args:
        columns: The columns in the order wanted, the server's own included.
        projection: The dataset's among them.
        max_batch_bytes: Greatest payload.
    """

    def __init__(
        self, columns: Sequence[WireColumn], projection: Projection, *, max_batch_bytes: int
    ) -> None:
        self._columns = tuple(columns)
        self._projection = projection
        self._max_batch_bytes = max_batch_bytes
        self._buffer = _aligned(0)
        self._packed = np.empty(0, np.uint8)
        self._last_layout: tuple[tuple[int, tuple[int, ...]], PayloadLayout] | None = None

    def assemble(self, rows: Rows, sample_ids: NDArray[np.int64]) -> Payload:
        """Assemble one batch.

        Args:
            rows: Its samples.
            sample_ids: ``(samples,) int64``: their ids; or ``(samples, 2)`` in mixtures.

        Raises:
            BadArgumentError: The payload would pass the limit.
        """
        count = len(sample_ids)
        packed = self._gather_packed(rows, count)
        ragged = {
            entry.column.name: spans(packed, entry)
            for entry in self._projection.fields
            if not entry.column.is_tensor
        }
        layout = self._layout(count, tuple(int(sizes.sum()) for _, sizes in ragged.values()))
        payload = self._reserve(layout)
        buffers = _buffers(layout, payload)
        # Staged rows join their pieces here, once.
        memory = rows.memory if ragged else None
        for column in self._columns:
            if column.name == SAMPLE_ID_COLUMN:
                next(buffers)[:] = sample_ids.reshape(-1).view(np.uint8)
                continue
            entry = self._projection.layout.by_name[column.name]
            if entry.valid_offset >= 0:
                next(buffers)[:] = packed[:, entry.valid_offset]
            if memory is None or column.is_tensor:
                _tensor(entry, rows, packed, next(buffers))
            else:
                begins, lengths = ragged[column.name]
                _offsets(column, lengths, next(buffers))
                gather_spans(memory, begins, lengths, next(buffers))
        return Payload(layout.lengths, payload.data, xxhash.xxh3_64_intdigest(payload.data))

    def _layout(self, count: int, ragged_bytes: tuple[int, ...]) -> PayloadLayout:
        # All batches of a stream but the last have one size, so without ragged columns one layout.
        if self._last_layout is None or self._last_layout[0] != (count, ragged_bytes):
            layout = layout_of(self._columns, count, ragged_bytes)
            self._last_layout = ((count, ragged_bytes), layout)
        return self._last_layout[1]

    def _gather_packed(self, rows: Rows, count: int) -> NDArray[np.uint8]:
        row_bytes = self._projection.layout.parts[0].row_bytes
        if self._packed.size < count * row_bytes:
            self._packed = np.empty(count * row_bytes, np.uint8)
        packed = self._packed[: count * row_bytes].reshape(count, row_bytes)
        if self._projection.packed:
            rows.packed(packed)
        return packed

    def _reserve(self, layout: PayloadLayout) -> NDArray[np.uint8]:
        refuse_large(layout.size, self._max_batch_bytes)
        if self._buffer.size < layout.size:
            self._buffer = _aligned(layout.size)
        return self._buffer[: layout.size]


def _buffers(layout: PayloadLayout, payload: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """Yield each buffer, with zeros in the gap before it: equal requests give equal bytes."""
    end = 0
    for begin, length in zip(layout.begins, layout.lengths, strict=True):
        payload[end:begin] = 0
        end = begin + length
        yield payload[begin:end]


def _tensor(entry: Field, rows: Rows, packed: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    dtype = entry.column.dtype
    if not entry.part and not entry.column.item_shape:
        # Tables have many of these; a packed row begins and ends at multiples of any item.
        np.copyto(out.view(dtype), packed.view(dtype)[:, entry.offset // dtype.itemsize])
        return
    target = out.reshape(packed.shape[0], entry.column.item_bytes)
    if entry.part:
        rows.wide(entry.part, target)
        return
    source = packed[:, entry.offset : entry.offset + target.shape[1]]
    np.copyto(target.view(dtype), source.view(dtype))


def _offsets(column: WireColumn, lengths: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Write where each row begins, in elements."""
    edges = out.view(np.int64)
    edges[0] = 0
    np.cumsum(lengths, out=edges[1:])
    if column.dtype.itemsize > 1:
        edges //= column.dtype.itemsize


def _aligned(size: int) -> NDArray[np.uint8]:
    """Return fresh memory that begins at a multiple of 64, with room to grow a little."""
    size += size // 8
    raw = np.empty(size + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + size]
