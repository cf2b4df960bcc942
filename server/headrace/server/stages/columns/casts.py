"""Casts, and rows of one length."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, StageFailedError
from headrace.payload import BFLOAT16
from headrace.server.batch.batch_values import Batch, Values
from headrace.server.batch.stage import Columns, ColumnStage, Work, tensor_of, wanted_column
from headrace.server.layout.wire_columns import DTYPES, WireColumn
from headrace.v1 import columns_pb2 as columns_pb
from headrace.v1 import shard_service_pb2 as pb

INT64 = np.dtype("<i8")
LENGTH_LIMIT = 1 << 31

# Elements processed at once (arbitrary: little memory, few calls); bytes of intermediate values per
# element (8-byte numbers, masks and indices); and bytes of Python numbers per row.
_CHUNK_ELEMENTS = 1 << 16
_ELEMENT_BYTES = 40
_ROW_BYTES = 128
# Longer rows are copied one by one: an index for each of their elements would take eight times the
# memory of most columns, and more time than the copy (the bound is arbitrary).
_SHORT_ROW = 256


class Cast(ColumnStage):
    """Cast the numbers of a column to another type."""

    def __init__(self, message: columns_pb.Cast) -> None:
        if message.element_type not in DTYPES or DTYPES[message.element_type] == BFLOAT16:
            raise BadArgumentError(
                f"cast: element_type is {message.element_type}, which is not a numeric type",
                field="stages",
            )
        self._name = message.column
        self._element_type = message.element_type
        self._dtype = DTYPES[message.element_type]

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        column = wanted_column(
            before, self._name, "cast", (pb.COLUMN_KIND_TENSOR, pb.COLUMN_KIND_RAGGED)
        )
        if column.dtype == BFLOAT16:
            raise BadArgumentError(
                f"cast: column {self._name!r} is bfloat16, which cannot be cast; request another "
                "dtype in Normalize",
                field="stages",
            )
        return {**before, self._name: self._cast(column)}

    def cost(self, batch: Batch) -> int:
        size = batch.columns[self._name].values.size
        return size * self._dtype.itemsize + _between_bytes(size)

    def work(self, batch: Batch) -> Work[Batch]:
        found = batch.columns[self._name]
        made = yield from self._values(found.values)
        values = replace(found, column=self._cast(found.column), values=made)
        return replace(batch, columns={**batch.columns, self._name: values})

    def _cast(self, column: WireColumn) -> WireColumn:
        return replace(column, element_type=self._element_type, dtype=self._dtype, logical_type="")

    def _values(self, values: NDArray[Any]) -> Work[NDArray[np.generic]]:
        made = np.empty(values.shape, self._dtype)
        source, target = values.reshape(-1), made.reshape(-1)
        # In chunks, so that intermediate values need little memory compared with the result.
        for first in range(0, source.size, _CHUNK_ELEMENTS):
            chunk = slice(first, first + _CHUNK_ELEMENTS)
            target[chunk] = self._chunk(source[chunk])
            yield
        return made

    def _chunk(self, values: NDArray[Any]) -> NDArray[np.generic]:
        if self._element_type == pb.ELEMENT_TYPE_BOOL:
            return np.asarray(values != 0, np.uint8)
        if self._dtype.kind in "iu":
            self._check_range(values)
        with np.errstate(over="ignore"):
            made = values.astype(self._dtype)
        if self._dtype.kind == "f":
            self._refuse(values, np.isinf(made) & np.isfinite(values))
        return made

    def _check_range(self, values: NDArray[Any]) -> None:
        low, high = integer_range(self._dtype)
        if values.dtype.kind == "f":
            # Both limits are powers of two and exact; NaN is on neither side.
            whole = np.trunc(values.astype(np.float64))
            self._refuse(values, ~((whole >= float(low)) & (whole < float(high) + 1.0)))
        elif values.size and not low <= int(values.min()) <= int(values.max()) <= high:
            self._refuse(values, np.array([not low <= each <= high for each in values.flat]))

    def _refuse(self, values: NDArray[Any], wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            found = values.reshape(-1)[wrong.reshape(-1)][0]
            raise StageFailedError(
                f"cast: column {self._name!r} contains {found}, which {self._dtype.name} cannot "
                "represent; cast to a wider type",
                column=self._name,
            )


class Pad(ColumnStage):
    """Pad ragged rows to tensor rows of one length, and add a column with their lengths."""

    def __init__(self, message: columns_pb.Pad) -> None:
        check_length("pad", message.length)
        self._name = message.column
        self._length = message.length
        self._fill = message.fill
        self._truncate = message.truncate

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        column = wanted_column(before, self._name, "pad", (pb.COLUMN_KIND_RAGGED,))
        check_fill("pad", column, self._fill)
        lengths = f"{self._name}.length"
        check_free(before, lengths, "pad")
        return {
            name: made
            for each in before.values()
            for name, made in (
                [
                    (self._name, tensor_of(column, (self._length,))),
                    (lengths, int64_column(lengths)),
                ]
                if each is column
                else [(each.name, each)]
            )
        }

    def cost(self, batch: Batch) -> int:
        return padded_cost(batch.columns[self._name], batch.row_count, self._length)

    def work(self, batch: Batch) -> Work[Batch]:
        found = batch.columns[self._name]
        assert found.offsets is not None
        lengths = np.diff(found.offsets)
        kept = np.minimum(lengths, self._length)
        if not self._truncate and (lengths > self._length).any():
            row = int(lengths.argmax())
            raise StageFailedError(
                f"pad: row {row} of column {self._name!r} has {lengths[row]} elements, more than "
                f"{self._length}; use a greater length, or truncate",
                column=self._name,
            )
        padded = yield from padded_rows(
            found, found.offsets[:-1], kept, length=self._length, fill=self._fill
        )
        columns: dict[str, Values] = {}
        for name, each in batch.columns.items():
            if name != self._name:
                columns[name] = each
                continue
            column = tensor_of(found.column, (self._length,))
            columns[name] = Values(column, padded, None, found.valid)
            columns[f"{name}.length"] = Values(int64_column(f"{name}.length"), kept)
        return replace(batch, columns=columns)


class Stack(ColumnStage):
    """Turn ragged rows of equal length into tensor rows."""

    def __init__(self, message: columns_pb.Stack) -> None:
        self._name = message.column
        self._shape = tuple(message.item_shape)
        self._length = math.prod(self._shape)
        if not self._shape or min(self._shape) < 1 or self._length >= LENGTH_LIMIT:
            raise BadArgumentError(
                f"stack: item_shape is {self._shape}; it must have sizes of 1 or more, and a "
                f"product below {LENGTH_LIMIT}",
                field="stages",
            )

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        column = wanted_column(before, self._name, "stack", (pb.COLUMN_KIND_RAGGED,))
        return {**before, self._name: tensor_of(column, self._shape)}

    def cost(self, batch: Batch) -> int:
        return padded_cost(batch.columns[self._name], batch.row_count, self._length)

    def work(self, batch: Batch) -> Work[Batch]:
        found = batch.columns[self._name]
        assert found.offsets is not None
        lengths = np.diff(found.offsets)
        wrong = lengths != self._length
        if found.valid is not None:
            wrong &= found.valid != 0
        if wrong.any():
            row = int(wrong.argmax())
            raise StageFailedError(
                f"stack: row {row} of column {self._name!r} has {lengths[row]} elements, but the "
                f"shape {self._shape} has {self._length}; pad it instead",
                column=self._name,
            )
        rows = yield from padded_rows(
            found, found.offsets[:-1], lengths, length=self._length, fill=0
        )
        column = tensor_of(found.column, self._shape)
        stacked = Values(column, rows.reshape(batch.row_count, *self._shape), None, found.valid)
        return replace(batch, columns={**batch.columns, self._name: stacked})


def padded_cost(found: Values, row_count: int, length: int) -> int:
    """Return the most memory that `padded_rows` and the work before it take, in bytes."""
    elements = row_count * length
    made = elements * found.column.dtype.itemsize
    return made + row_count * _ROW_BYTES + _between_bytes(elements)


def _between_bytes(elements: int) -> int:
    return min(elements, _CHUNK_ELEMENTS) * _ELEMENT_BYTES


def padded_rows(
    found: Values,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    length: int,
    fill: float,
) -> Work[NDArray[np.generic]]:
    """Return ``(rows, length)``: the elements of a ragged column, each row filled up."""
    out = np.full((starts.size, length), fill, found.column.dtype)
    if length > _SHORT_ROW:
        spans = zip(starts.tolist(), lengths.tolist(), strict=True)
        for row, (start, size) in enumerate(spans):
            out[row, :size] = found.values[start : start + size]
            yield
        return out
    places = np.arange(length)
    # A few rows at a time, so that intermediate values need little memory.
    step = max(1, _CHUNK_ELEMENTS // length)
    for first in range(0, starts.size, step):
        rows = slice(first, first + step)
        inside = places < lengths[rows, None]
        out[rows][inside] = found.values[(starts[rows, None] + places)[inside]]
        yield
    return out


def int64_column(name: str) -> WireColumn:
    """Return an integer column with the lengths that a stage counts."""
    return WireColumn(name, pb.COLUMN_KIND_TENSOR, pb.ELEMENT_TYPE_INT64, INT64)


def check_length(stage: str, length: int) -> None:
    """Refuse a length out of range.

    Raises:
        BadArgumentError: The length is out of range.
    """
    if not 1 <= length < LENGTH_LIMIT:
        raise BadArgumentError(
            f"{stage}: length is {length}; it must be in [1, {LENGTH_LIMIT})", field="stages"
        )


def check_fill(stage: str, column: WireColumn, fill: float) -> None:
    """Refuse a fill value that the column's type cannot represent.

    Raises:
        BadArgumentError: The type cannot represent the value.
    """
    if column.dtype.kind not in "iu":
        return
    low, high = integer_range(column.dtype)
    if not (math.isfinite(fill) and fill == int(fill) and low <= fill <= high):
        raise BadArgumentError(
            f"{stage}: fill is {fill}, which column {column.name!r} of {column.dtype.name} cannot "
            "represent",
            field="stages",
        )


def integer_range(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type."""
    bits = 8 * dtype.itemsize
    return (0, (1 << bits) - 1) if dtype.kind == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


def check_free(columns: Columns, name: str, stage: str) -> None:
    """Refuse to make a column whose name is already taken.

    Raises:
        BadArgumentError: A column has that name.
    """
    if name in columns:
        raise BadArgumentError(
            f"{stage}: it would make a column {name!r}, which already exists; leave that out",
            field="stages",
        )
