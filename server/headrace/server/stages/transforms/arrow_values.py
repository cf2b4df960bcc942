"""Convert the columns of a batch to Arrow arrays and back, for functions that use Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import StageFailedError
from headrace.server.batch.batch_values import Values
from headrace.server.cache.decode import column_parts
from headrace.server.layout.flatten_columns import lower_field
from headrace.server.layout.wire_columns import ARROW_TYPES, WireColumn, split_schema
from headrace.v1 import shard_service_pb2 as pb


def arrow_field(column: WireColumn) -> pa.Field[Any]:
    """Return the field that a column becomes."""
    return pa.field(column.name, _type(column), column.nullable)


def arrow_batch(columns: Mapping[str, Values]) -> pa.RecordBatch:
    """Return columns as Arrow arrays."""
    schema = pa.schema([arrow_field(each.column) for each in columns.values()])
    return pa.RecordBatch.from_arrays([_array(each) for each in columns.values()], schema=schema)


def arrow_columns(schema: pa.Schema, *, title: str) -> tuple[WireColumn, ...]:
    """Return the columns for the schema of a function's results.

    Raises:
        StageFailedError: A column cannot be sent.
    """
    columns, refused = split_schema(schema)
    for reason in refused.values():
        raise StageFailedError(
            f"the transform {title} returns values that cannot be sent: {reason}"
        )
    return columns


def arrow_values(batch: pa.RecordBatch) -> dict[str, Values]:
    """Return Arrow arrays as columns.

    Raises:
        HeadraceError: A list contains nulls, or a column that may not be null does.
    """
    columns, _ = split_schema(batch.schema)
    lowered = [
        (lowered.name, lowered.extract(batch.column(index)))
        for index, field in enumerate(batch.schema)
        for lowered in lower_field(field)
    ]
    arrays = dict(lowered)
    found = {}
    for column in columns:
        values, offsets, valid = column_parts(arrays[column.name], column)
        if column.is_tensor:
            values = values.reshape(batch.num_rows, *column.item_shape)
        found[column.name] = Values(column, values, offsets, valid)
    return found


def _type(column: WireColumn) -> pa.DataType:
    if column.kind == pb.COLUMN_KIND_STRING:
        return pa.large_string()
    if column.kind == pb.COLUMN_KIND_BYTES:
        return pa.large_binary()
    element = ARROW_TYPES[column.element_type]
    if column.kind == pb.COLUMN_KIND_RAGGED:
        return pa.large_list(pa.field("item", element, nullable=False))
    for size in reversed(column.item_shape):
        element = pa.list_(pa.field("item", element, nullable=False), size)
    return element


def _array(values: Values) -> pa.Array[Any]:
    column, kind = values.column, _type(values.column)
    bitmap = None if values.valid is None else _bits(values.valid)
    if values.offsets is None:
        rows = len(values.values)
        return _nested(kind, rows, bitmap, values.values, column)
    offsets = pa.py_buffer(np.require(values.offsets, requirements=["C", "A"]).data)
    rows = values.offsets.size - 1
    if column.kind == pb.COLUMN_KIND_RAGGED:
        items = _flat(ARROW_TYPES[column.element_type], values.values, None, column)
        return pa.Array.from_buffers(kind, rows, [bitmap, offsets], children=[items])
    flat = pa.py_buffer(values.values.tobytes())
    return pa.Array.from_buffers(kind, rows, [bitmap, offsets, flat])


def _nested(
    kind: pa.DataType,
    rows: int,
    bitmap: pa.Buffer | None,
    values: NDArray[np.generic],
    column: WireColumn,
) -> pa.Array[Any]:
    if not column.item_shape:
        return _flat(kind, values, bitmap, column)
    array = _flat(ARROW_TYPES[column.element_type], values.reshape(-1), None, column)
    types: list[Any] = []
    while isinstance(kind, pa.FixedSizeListType):
        types.append(kind)
        kind = kind.value_type
    for depth in range(len(types) - 1, -1, -1):
        count = len(array) // types[depth].list_size if len(array) else 0
        own = bitmap if depth == 0 else None
        array = pa.Array.from_buffers(types[depth], count, [own], children=[array])
    assert len(array) == rows
    return array


def _flat(
    kind: pa.DataType,
    values: NDArray[np.generic],
    bitmap: pa.Buffer | None,
    column: WireColumn,
) -> pa.Array[Any]:
    if column.element_type == pb.ELEMENT_TYPE_BOOL:
        content = _bits(values.view(np.uint8))
    else:
        content = pa.py_buffer(np.require(values, requirements=["C", "A"]).tobytes())
    return pa.Array.from_buffers(kind, values.size, [bitmap, content])


def _bits(flags: NDArray[np.uint8]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little").tobytes())
