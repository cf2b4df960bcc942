"""Measure and write several batches in two compiled calls: columns straight to where they go.

It writes what `headrace.server.batch.assemble` writes with NumPy, which goes by way of packed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InternalError
from headrace.payload import OFFSET_BYTES, SAMPLE_ID_COLUMN, PayloadLayout
from headrace.server.cache.gather import BlockRows, Projection
from headrace.server.layout.wire_columns import WireColumn


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Where the buffers of batches lie in their payloads.

    Attributes:
        begins: ``(batches, buffers) int64``.
        lengths: ``(batches, buffers) int64``: their bytes.
        buffer_bytes: The same of each batch; of batches that are laid out alike the same object.
        sizes: Bytes of each payload.
    """

    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    buffer_bytes: list[tuple[int, ...]]
    sizes: list[int]

    def layout(self, batch: int) -> PayloadLayout:
        """Return the layout of one batch."""
        begins = tuple(self.begins[batch].tolist())
        return PayloadLayout(self.buffer_bytes[batch], begins, self.sizes[batch])


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
        row_bytes = of_part.row_bytes
        fields = np.array([[part, row_bytes, of_part.base_unit, 0, row_bytes, 0]], np.int64)
        check_found(
            is_found=self._kernels.gather(
                rows.memory.array,
                rows.slot_of,
                rows.bases,
                rows.blocks[own],
                rows.offsets[own],
                fields,
                out.reshape(-1),
            )
        )

    def spans(self, part: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where one part of each sample begins in the memory, and its bytes."""
        rows = self._rows
        of_part = rows.layout.parts[part]
        bases = rows.bases[part][rows.slot_of[rows.blocks]]
        begins = bases * of_part.base_unit + rows.offsets * of_part.row_bytes
        return begins, np.full(begins.size, of_part.row_bytes, np.int64)


class AtOnce:
    """Writes the payloads of one stream, one after another or several together.

    Not safe for several threads: what was measured last is what is written.

    Args:
        columns: The columns in the order wanted, the server's own included.
        projection: The dataset's among them.
    """

    def __init__(self, columns: Sequence[WireColumn], projection: Projection) -> None:
        layout = projection.layout
        fields: list[tuple[int, int, int, int, int, int]] = []
        ragged: list[tuple[int, int, int]] = []
        # Bytes for each row, and besides; or which ragged column has it.
        buffers: list[tuple[int, int]] = []
        self._id_buffer = -1
        packed_bytes = layout.parts[0].row_bytes
        for column in columns:
            if column.name == SAMPLE_ID_COLUMN:
                self._id_buffer = len(buffers)
                buffers.append((column.item_bytes, 0))
                continue
            entry = layout.by_name[column.name]
            if entry.valid_offset >= 0:
                fields.append((0, packed_bytes, packed_bytes, entry.valid_offset, 1, len(buffers)))
                buffers.append((1, 0))
            if not column.is_tensor:
                ragged.append((entry.offset, column.dtype.itemsize, len(buffers)))
                buffers += ((OFFSET_BYTES, OFFSET_BYTES), (0, -len(ragged)))
                continue
            if column.item_bytes:
                part = layout.parts[entry.part]
                where = (entry.part, part.row_bytes, part.base_unit, entry.offset)
                fields.append((*where, column.item_bytes, len(buffers)))
            buffers.append((column.item_bytes, 0))
        # Columns of one part together: their rows are looked up once.
        fields.sort(key=lambda field: field[0])
        self._packed_bytes = packed_bytes
        self._fields = np.array(fields, np.int64).reshape(-1, 6)
        self._ragged = np.array(ragged, np.int64).reshape(-1, 3)
        self._buffers = np.array(buffers, np.int64).reshape(-1, 2)
        self._spans = np.empty((len(ragged), 3, 0), np.int64)
        # By rows and batches: without ragged columns those of equally many rows are alike.
        self._measured: dict[tuple[int, int], Measured] = {}

    def measure(self, kernels: ModuleType, rows: BlockRows, batch_count: int = 1) -> Measured:
        """Lay out batches of equally many rows.

        Args:
            kernels: The compiled functions.
            rows: Their samples, one batch after the other.
            batch_count: How many they are.
        """
        key = (rows.offsets.size, batch_count)
        if (known := self._measured.get(key)) is not None:
            return known
        if self._spans.shape[2] != rows.offsets.size + 1:
            self._spans = np.empty((len(self._ragged), 3, rows.offsets.size + 1), np.int64)
        begins, lengths = np.empty((2, batch_count, len(self._buffers)), np.int64)
        is_found = kernels.measure_batches(
            rows.memory.array,
            rows.slot_of,
            rows.bases,
            rows.blocks,
            rows.offsets,
            self._packed_bytes,
            self._ragged,
            self._buffers,
            self._spans,
            begins,
            lengths,
        )
        check_found(is_found=is_found)
        sizes = (begins[:, -1:] + lengths[:, -1:]).sum(axis=1).tolist()
        if self._ragged.size:
            buffer_bytes = list(map(tuple, lengths.tolist()))
        else:
            buffer_bytes = [tuple(lengths[0].tolist())] * batch_count
        measured = Measured(begins, lengths, buffer_bytes, sizes)
        if not self._ragged.size:
            self._measured[key] = measured
        return measured

    def write(
        self,
        kernels: ModuleType,
        rows: BlockRows,
        sample_ids: NDArray[np.int64],
        measured: Measured,
        *,
        heads: bytes,
        targets: NDArray[np.int64],
    ) -> None:
        """Write the batches that were measured last.

        Args:
            kernels: The compiled functions.
            rows: As they were measured.
            sample_ids: Their ids, as they are shown.
            measured: What was found.
            heads: What precedes each payload, one after the other.
            targets: ``(batches, 4) int64``: the address of each payload, its bytes, bytes of its
                head, and the address of what takes its hash or 0. All of it is written.
        """
        is_found = kernels.write_batches(
            rows.memory.array,
            rows.slot_of,
            rows.bases,
            rows.blocks,
            rows.offsets,
            self._fields,
            self._ragged,
            self._spans,
            measured.begins,
            measured.lengths,
            sample_ids.reshape(-1).view(np.uint8),
            self._id_buffer,
            np.frombuffer(heads, np.uint8),
            targets,
        )
        check_found(is_found=is_found)


def check_found(*, is_found: bool) -> None:
    """Refuse what the tables of the cache say of a batch, if it cannot be.

    Raises:
        InternalError: It cannot.
    """
    if not is_found:
        raise InternalError("the tables of the cache point outside of it; restart the server")
