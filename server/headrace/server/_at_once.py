"""Assemble a batch in a few compiled calls: each column straight from its blocks to where it goes.

It writes what `headrace.server._assemble` writes with NumPy, which goes by way of packed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InternalError
from headrace.server._block import Field
from headrace.server._columns import SAMPLE_ID_COLUMN, WireColumn
from headrace.server._gather import BlockRows, Projection
from headrace.server._payload import PayloadLayout

_NO_GAPS = np.empty((0, 2), np.int64)


class _Values:
    """Where the values of one ragged column lie, for one batch after the other."""

    def __init__(self) -> None:
        self._room = np.empty((3, 0), np.int64)
        self.begins = self.lengths = self.edges = self._room[0]

    def find(self, kernels: ModuleType, rows: BlockRows, entry: Field) -> int:
        """Find those of a batch; return how many bytes they are together."""
        count = rows.offsets.size
        if self._room.shape[1] <= count:
            self._room = np.empty((3, count + 1), np.int64)
        self.begins, self.lengths = self._room[0, :count], self._room[1, :count]
        self.edges = self._room[2, : count + 1]
        is_found = kernels.find_values(
            rows.memory.array,
            rows.slot_of,
            rows.bases,
            rows.blocks,
            rows.offsets,
            rows.layout.parts[0].row_bytes,
            entry.offset,
            self.begins,
            self.lengths,
            self.edges,
        )
        check_found(is_found=is_found)
        return int(self.edges[count])


class CompiledRows:
    """`BlockRows`, gathered by compiled code: for what goes to several places."""

    def __init__(self, kernels: ModuleType, rows: BlockRows) -> None:
        self._kernels = kernels
        self._rows = rows
        self.memory = rows.memory

    def packed(self, out: NDArray[np.uint8]) -> None:
        """Gather the packed rows into ``(samples, row_bytes) uint8``."""
        self.wide(0, out)

    def wide(self, part: int, out: NDArray[np.uint8], *, first: int = 0) -> None:
        """Gather one part of the samples from ``first`` on into ``(n, row_bytes) uint8``."""
        rows, own = self._rows, slice(first, first + len(out))
        of_part = rows.layout.parts[part]
        unit = of_part.row_bytes if of_part.aligned else 1
        fields = np.array([[part, of_part.row_bytes, unit, 0, of_part.row_bytes, 0]], np.int64)
        check_found(
            is_found=self._kernels.gather(
                rows.memory.array,
                rows.slot_of,
                rows.bases,
                rows.blocks[own],
                rows.offsets[own],
                fields,
                _NO_GAPS,
                out.reshape(-1),
            )
        )


class AtOnce:
    """Writes the payloads of one stream, one after another.

    Not safe for several threads: the batch that was measured last is the one that is written.

    Args:
        columns: The columns in the order wanted, the server's own included.
        projection: The dataset's among them.
    """

    def __init__(self, columns: Sequence[WireColumn], projection: Projection) -> None:
        layout = projection.layout
        rows: list[tuple[int, int, int, int, int]] = []
        buffers: list[int] = []
        self._ragged: list[tuple[Field, int, _Values]] = []
        self._id_buffer = -1
        buffer = 0
        for column in columns:
            if column.name == SAMPLE_ID_COLUMN:
                self._id_buffer = buffer
                buffer += 1
                continue
            entry = layout.by_name[column.name]
            if entry.valid_offset >= 0:
                row_bytes = layout.parts[0].row_bytes
                rows.append((0, row_bytes, row_bytes, entry.valid_offset, 1))
                buffers.append(buffer)
                buffer += 1
            if column.is_tensor:
                part = layout.parts[entry.part]
                unit = part.row_bytes if part.aligned else 1
                rows.append((entry.part, part.row_bytes, unit, entry.offset, column.item_bytes))
                buffers.append(buffer)
                buffer += 1
            else:
                self._ragged.append((entry, buffer, _Values()))
                buffer += 2
        # Columns of one part together: their rows are looked up once.
        order = sorted(range(len(rows)), key=lambda index: rows[index][0])
        self._fields = np.array(
            [(*rows[index], 0) for index in order if rows[index][4]], np.int64
        ).reshape(-1, 6)
        self._field_buffers = [buffers[index] for index in order if rows[index][4]]
        self._gaps = _NO_GAPS
        self._last_layout: PayloadLayout | None = None

    def measure(self, kernels: ModuleType, rows: BlockRows) -> tuple[int, ...]:
        """Return the bytes of all values of each ragged column of a batch, in order."""
        return tuple(values.find(kernels, rows, entry) for entry, _, values in self._ragged)

    def write(
        self,
        kernels: ModuleType,
        rows: BlockRows,
        sample_ids: NDArray[np.int64],
        layout: PayloadLayout,
        out: NDArray[np.uint8],
    ) -> None:
        """Write the batch that was measured last.

        Args:
            kernels: The compiled functions.
            rows: Its samples.
            sample_ids: Their ids, as they are shown.
            layout: Of its payload.
            out: ``(layout.size,) uint8``; all of it is written.
        """
        if layout is not self._last_layout:
            self._place(layout)
        is_found = kernels.gather(
            rows.memory.array,
            rows.slot_of,
            rows.bases,
            rows.blocks,
            rows.offsets,
            self._fields,
            self._gaps,
            out,
        )
        check_found(is_found=is_found)
        if self._id_buffer >= 0:
            begin = layout.begins[self._id_buffer]
            out[begin : begin + sample_ids.nbytes] = sample_ids.reshape(-1).view(np.uint8)
        for entry, buffer, values in self._ragged:
            begin, end = layout.begins[buffer], layout.begins[buffer + 1]
            edges = values.edges
            if entry.column.dtype.itemsize > 1:
                edges = edges // entry.column.dtype.itemsize
            out[begin : begin + edges.nbytes] = edges.view(np.uint8)
            check_found(
                is_found=kernels.copy_spans(
                    rows.memory.array,
                    values.begins,
                    values.lengths,
                    out[end : end + layout.lengths[buffer + 1]],
                )
            )

    def _place(self, layout: PayloadLayout) -> None:
        # In plain Python: with ragged columns every batch has a layout of its own, of few buffers.
        begins, lengths = layout.begins, layout.lengths
        self._fields[:, 5] = [begins[buffer] for buffer in self._field_buffers]
        ends = map(int.__add__, begins, lengths)
        gaps = [gap for gap in zip(ends, begins[1:], strict=False) if gap[0] < gap[1]]
        self._gaps = np.array(gaps, np.int64).reshape(-1, 2)
        self._last_layout = layout


def check_found(*, is_found: bool) -> None:
    """Refuse what the tables of the cache say of a batch, if it cannot be.

    Raises:
        InternalError: It cannot.
    """
    if not is_found:
        raise InternalError("the tables of the cache point outside of it; restart the server")
