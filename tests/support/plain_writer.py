"""Write batches with NumPy and Arrow alone: what the compiled writer is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.payload import SAMPLE_ID_COLUMN, PayloadLayout, layout_of
from headrace.server.batch.batch_writer import Measured, Read
from headrace.server.batch.payload_out import PayloadOut, payload_out
from headrace.server.batch.targets import Target
from headrace.server.cache.gather import Rows, gather_spans, spans
from headrace.server.cache.memory.arena import Memory
from headrace.server.layout.block_layout import Field, Projection
from headrace.server.layout.wire_columns import WireColumn

_STRIP_BYTES = 256 << 10


def measured_of(layouts: Sequence[PayloadLayout]) -> Measured:
    """Combine layouts, one for each batch."""
    return Measured(
        np.array([layout.starts for layout in layouts], np.int64),
        np.array([layout.lengths for layout in layouts], np.int64),
        [layout.lengths for layout in layouts],
        [layout.size for layout in layouts],
    )


class PlainWriter:
    """Writes the batches of one stream; see `headrace.server.batch.batch_writer`.

    Args:
        columns: The columns in the requested order, including the server's own.
        projection: The dataset's columns among them.
    """

    def __init__(self, columns: Sequence[WireColumn], projection: Projection) -> None:
        self.projection = projection
        self._columns = tuple(columns)
        self._projection = projection
        self.row_bytes = self._row_bytes = projection.layout.parts[0].row_bytes
        self._scratch = np.empty(0, np.uint8)
        self._packed: NDArray[np.uint8] = self._scratch

    def measure(self, rows: Rows, read: Read, batch_count: int) -> Measured:
        """Lay out batches with equal numbers of rows, and gather their packed rows."""
        row_count = read.sample_ids.size
        if self._scratch.size < row_count * self._row_bytes:
            self._scratch = np.empty(row_count * self._row_bytes, np.uint8)
        packed = self._scratch[: row_count * self._row_bytes]
        self._packed = packed.reshape(row_count, self._row_bytes)
        if self._projection.packed:
            rows.packed(self._packed)
        sizes = [
            spans(self._packed, entry)[1].reshape(batch_count, -1).sum(axis=1).tolist()
            for entry in self._projection.fields
            if not entry.column.is_tensor
        ]
        count = row_count // batch_count
        layouts = [
            layout_of(self._columns, count, [each[batch] for each in sizes])
            for batch in range(batch_count if sizes else 1)
        ]
        layouts *= batch_count // len(layouts)
        return measured_of(layouts)

    def write(
        self,
        rows: Rows,
        sample_ids: NDArray[np.int64],
        measured: Measured,
        targets: Sequence[Target],
    ) -> None:
        """Write the batches that were measured last, with their headers and hashes."""
        is_ragged = any(not entry.column.is_tensor for entry in self._projection.fields)
        # This joins the pieces of staged rows, once.
        memory = rows.memory if is_ragged else Memory(np.empty(0, np.uint8))
        count = len(sample_ids) // len(targets)
        for batch, target in enumerate(targets):
            out = payload_out(target)
            places = iter(measured.starts[batch].tolist())
            own = slice(batch * count, (batch + 1) * count)
            for column in self._columns:
                if column.name == SAMPLE_ID_COLUMN:
                    out.put(next(places), sample_ids[own].reshape(-1).view(np.uint8))
                    continue
                entry, packed = self._projection.layout.by_name[column.name], self._packed[own]
                if entry.valid_offset >= 0:
                    out.put(next(places), packed[:, entry.valid_offset])
                if not column.is_tensor:
                    starts, lengths = spans(packed, entry)
                    edges = _edges(lengths)
                    out.put(next(places), (edges // column.dtype.itemsize).view(np.uint8))
                    _ragged(memory, starts, edges, out, next(places))
                elif entry.part:
                    _wide(rows, entry, own, out, next(places))
                else:
                    _narrow(entry, packed, out.take(next(places), count * column.item_bytes))
            out.end()


def _narrow(entry: Field, packed: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Copy a column out of packed rows."""
    dtype = entry.column.dtype
    if not entry.column.item_shape:
        # Tables have many such columns; packed rows are aligned for items of any size.
        np.copyto(out.view(dtype), packed.view(dtype)[:, entry.offset // dtype.itemsize])
        return
    target = out.reshape(packed.shape[0], entry.column.item_bytes)
    source = packed[:, entry.offset : entry.offset + target.shape[1]]
    np.copyto(target.view(dtype), source.view(dtype))


def _wide(rows: Rows, entry: Field, own: slice, out: PayloadOut, at: int) -> None:
    """Gather the rows of a column with its own part."""
    size = entry.column.item_bytes
    step = max(1, _STRIP_BYTES // size)
    out.take(at, 0)  # writes the padding before an empty buffer too
    for first in range(own.start, own.stop, step):
        count = min(step, own.stop - first)
        place = out.take(at + (first - own.start) * size, count * size)
        rows.wide(entry.part, place.reshape(count, size), first=first)


def _edges(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each row starts, and where the last one ends, in bytes."""
    edges = np.empty(len(lengths) + 1, np.int64)
    edges[0] = 0
    np.cumsum(lengths, out=edges[1:])
    return edges


def _ragged(
    memory: Memory, starts: NDArray[np.int64], edges: NDArray[np.int64], out: PayloadOut, at: int
) -> None:
    """Gather spans back to back."""
    out.take(at, 0)
    first = 0
    while first < starts.size:
        end = int(np.searchsorted(edges, edges[first] + _STRIP_BYTES, side="right")) - 1
        end = min(max(end, first + 1), starts.size)
        place = out.take(at + int(edges[first]), int(edges[end] - edges[first]))
        gather_spans(memory, starts[first:end], np.diff(edges[first : end + 1]), place)
        first = end
