"""Read the values of Arrow arrays as NumPy views, and write a block of them into the arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from headrace.errors import ShardCorruptError
from headrace.server.cache.memory.arena import Memory
from headrace.server.layout.block_layout import BlockLayout, BlockPart, Field
from headrace.server.layout.flatten_columns import null_items_error
from headrace.server.layout.wire_columns import WireColumn

# The values of an array are known from its type only at run time.
Array: TypeAlias = "pa.Array[Any]"

_BYTE = np.dtype(np.uint8)
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class _Ragged:
    """The values of a ragged column as bytes: sample i is ``values[starts[i]:][:lengths[i]]``."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    values: NDArray[np.uint8]


class DecodedBlock:
    """A block whose columns are views of Arrow's memory, to be written into the arena.

    Args:
        layout: The layout in the arena.
        batch: The block.

    Raises:
        UnsupportedColumnError: A list holds a null element.
        ShardCorruptError: A column is missing, or holds nulls although it is not nullable.
    """

    def __init__(self, layout: BlockLayout, batch: pa.RecordBatch) -> None:
        self.sample_count = batch.num_rows
        self._layout = layout
        self._valid: dict[str, NDArray[np.uint8] | None] = {}
        self._tensors: dict[str, NDArray[np.uint8]] = {}
        self._ragged: dict[str, _Ragged] = {}
        for entry in layout.fields:
            self._add(entry.column, _storage(batch, entry.column))
        ragged_bytes = sum(ragged.values.size for ragged in self._ragged.values())
        self.size = layout.size(self.sample_count, ragged_bytes)

    def write_alone(
        self, memory: Memory, rows: Sequence[int], extents: Sequence[tuple[int, int]]
    ) -> list[tuple[int, ...]]:
        """Write the block, the only row of its read, as `StoredRun.write` does."""
        del rows
        return [self.write(memory, extents[0][0])]

    def write(self, memory: Memory, start: int) -> tuple[int, ...]:
        """Write the block at ``start`` and return the base of each part.

        The caller owns ``[start, start + size)`` of the memory. A base is added to a sample's
        offset in the block. It counts rows from the start of the memory if the part is aligned, and
        bytes if not.
        """
        bases: list[int] = []
        places: list[NDArray[np.uint8]] = []
        end = start
        for part in self._layout.parts:
            base, place, end = self._place(part, memory, end)
            bases.append(base)
            places.append(place)
        packed = places[0]
        for entry in self._layout.fields:
            if entry.column.is_tensor:
                self._write_tensor(entry, places[entry.part])
            else:
                end = self._write_ragged(entry, packed, memory, end)
            self._write_valid(entry, packed)
        return tuple(bases)

    def _add(self, column: WireColumn, array: Array) -> None:
        valid = _valid(array)
        _refuse_nulls(array, column, valid)
        self._valid[column.name] = valid
        if column.is_tensor:
            values = _elements(array, column, valid)
            self._tensors[column.name] = values.view(np.uint8).reshape(
                self.sample_count, column.item_bytes
            )
        else:
            self._ragged[column.name] = _ragged(array, column, valid)

    def _place(
        self, part: BlockPart, memory: Memory, end: int
    ) -> tuple[int, NDArray[np.uint8], int]:
        if not part.row_bytes:
            return 0, np.empty((self.sample_count, 0), np.uint8), end
        start = end + -end % part.row_bytes if part.aligned else end
        end = start + self.sample_count * part.row_bytes
        place = memory.array[start:end].reshape(self.sample_count, part.row_bytes)
        return start // part.row_bytes if part.aligned else start, place, end

    def _write_tensor(self, entry: Field, place: NDArray[np.uint8]) -> None:
        values = self._tensors[entry.column.name]
        target = place[:, entry.offset : entry.offset + values.shape[1]]
        target[...] = values
        valid = self._valid[entry.column.name]
        if valid is not None:
            target[valid == 0] = 0

    def _write_valid(self, entry: Field, packed: NDArray[np.uint8]) -> None:
        if entry.valid_offset >= 0:
            valid = self._valid[entry.column.name]
            packed[:, entry.valid_offset] = 1 if valid is None else valid

    def _write_ragged(
        self, entry: Field, packed: NDArray[np.uint8], memory: Memory, start: int
    ) -> int:
        ragged = self._ragged[entry.column.name]
        end = start + ragged.values.size
        memory.array[start:end] = ragged.values
        spans = packed[:, entry.offset : entry.offset + 16].view(np.int64)
        spans[:, 0] = ragged.starts + start
        spans[:, 1] = ragged.lengths
        return end


def column_parts(
    array: Array, column: WireColumn
) -> tuple[NDArray[np.generic], NDArray[np.int64] | None, NDArray[np.uint8] | None]:
    """Return the values of an array end to end, as a payload holds the column.

    Returns:
        The elements of all rows, with zeros for nulls; for ragged columns where each row starts and
        the last one ends, else None; for nullable columns a byte for each row, else None.

    Raises:
        UnsupportedColumnError: A list holds a null element.
        ShardCorruptError: The array holds nulls although the column is not nullable.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    valid = _valid(array)
    _refuse_nulls(array, column, valid)
    shown = np.ones(len(array), np.uint8) if valid is None and column.nullable else valid
    if column.is_tensor:
        values = _elements(array, column, valid).copy()
        if valid is not None and values.size:
            values.reshape(len(array), -1)[valid == 0] = 0
        return values, None, shown
    ragged = _ragged(array, column, valid)
    flat = ragged.values
    if flat.size != ragged.lengths.sum():
        # Drops the values under nulls.
        pairs = zip(ragged.starts.tolist(), ragged.lengths.tolist(), strict=True)
        pieces = [flat[start : start + length] for start, length in pairs]
        flat = np.concatenate([*pieces, flat[:0]])
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(ragged.lengths // column.dtype.itemsize, out=offsets[1:])
    return flat.view(column.dtype), offsets, shown


def _storage(batch: pa.RecordBatch, column: WireColumn) -> Array:
    index = batch.schema.get_field_index(column.name)
    if index < 0:
        raise ShardCorruptError(
            f"a block has no column {column.name!r}, but its dataset has one", column=column.name
        )
    array = batch.column(index)
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _refuse_nulls(array: Array, column: WireColumn, valid: NDArray[np.uint8] | None) -> None:
    if valid is not None and not column.nullable:
        raise ShardCorruptError(
            f"column {column.name!r} contains {array.null_count} nulls in a block, but its schema "
            "says that it has none",
            column=column.name,
        )


def _valid(array: Array) -> NDArray[np.uint8] | None:
    """Return a byte for each row, 1 if it has a value; None if all rows have one."""
    bitmap = array.buffers()[0]
    if bitmap is None or array.null_count == 0:
        return None
    bits = _view(bitmap, _BYTE)
    end = array.offset + len(array)
    return np.unpackbits(bits[: (end + 7) // 8], count=end, bitorder="little")[array.offset :]


def _elements(
    array: Array, column: WireColumn, valid: NDArray[np.uint8] | None
) -> NDArray[np.generic]:
    """Return the elements of all rows, end to end."""
    while pat.is_fixed_size_list(array.type):
        size = array.type.list_size
        inner = _inner(array).slice(array.offset * size, len(array) * size)
        inner_valid = _valid(inner)
        if inner_valid is not None:
            rows = np.ones(len(array), np.uint8) if valid is None else valid
            if np.any(inner_valid.reshape(len(array), size) < rows[:, None]):
                raise null_items_error(column.name)
            valid = inner_valid
        elif valid is not None:
            valid = np.repeat(valid, size)
        array = inner
    return _flat(array, column)


def _inner(array: Array) -> Array:
    # All values of a list, including those outside a slice.
    inner: Array = array.values  # type: ignore[attr-defined]  # only list arrays have it
    return inner


def _flat(array: Array, column: WireColumn) -> NDArray[np.generic]:
    if pat.is_boolean(array.type):
        array = pc.cast(array, pa.uint8())
    return _view(array.buffers()[1], column.dtype)[array.offset : array.offset + len(array)]


def _ragged(array: Array, column: WireColumn, valid: NDArray[np.uint8] | None) -> _Ragged:
    if pat.is_fixed_size_binary(array.type):
        edges = np.arange(len(array) + 1, dtype=np.int64) * array.type.byte_width
        values = _view(array.buffers()[1], _BYTE)[array.offset * array.type.byte_width :][
            : int(edges[-1])
        ]
    elif pat.is_list(array.type) or pat.is_large_list(array.type):
        edges = _edges(array, wide=pat.is_large_list(array.type))
        inner = _inner(array).slice(int(edges[0]), int(edges[-1] - edges[0]))
        _refuse_null_elements(inner, column, edges, valid)
        edges = (edges - edges[0]) * column.dtype.itemsize
        values = np.ascontiguousarray(_flat(inner, column)).view(np.uint8)
    else:
        wide = pat.is_large_string(array.type) or pat.is_large_binary(array.type)
        edges = _edges(array, wide=wide)
        values = _view(array.buffers()[2], _BYTE)[int(edges[0]) : int(edges[-1])]
        edges = edges - edges[0]
    lengths = np.diff(edges)
    if valid is not None:
        lengths = lengths * valid
    return _Ragged(edges[:-1], lengths, values)


def _view(buffer: pa.Buffer | None, dtype: np.dtype[_T]) -> NDArray[_T]:
    if buffer is None or buffer.size == 0:
        return np.empty(0, dtype)
    # The padding of buffers need not be whole elements.
    count = buffer.size // dtype.itemsize
    return np.frombuffer(memoryview(buffer), dtype, count)


def _edges(array: Array, *, wide: bool) -> NDArray[np.int64]:
    buffer = array.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(1, np.int64)
    edges: NDArray[np.integer] = (
        _view(buffer, np.dtype(np.int64)) if wide else _view(buffer, np.dtype(np.int32))
    )
    return edges[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _refuse_null_elements(
    inner: Array,
    column: WireColumn,
    edges: NDArray[np.int64],
    valid: NDArray[np.uint8] | None,
) -> None:
    inner_valid = _valid(inner)
    if inner_valid is None:
        return
    rows = np.ones(edges.size - 1, np.uint8) if valid is None else valid
    if np.any(inner_valid < np.repeat(rows, np.diff(edges))):
        raise null_items_error(column.name)
