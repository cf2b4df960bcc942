"""The Arrow type of each encoding.

| encoding | Arrow type |
| --- | --- |
| ``int``, ``int8`` … ``float64`` | the number |
| ``ndarray:T:d0`` | fixed-size list of T |
| ``ndarray:T:d0,d1,…`` | fixed-shape tensor of T |
| ``ndarray:T``, ``ndarray``, one axis | list of T |
| the same, several axes | struct of ``data`` (list of T) and ``shape`` (int32 for each axis) |
| the same, of any number of axes | struct of ``data`` (list of T) and ``shape`` (list of int32) |
| ``ndarray``, of several T | struct of ``data`` (binary), ``shape``, ``dtype`` (string) |
| ``str``, ``str_int``, ``str_decimal``, ``json`` | string, the text as it is |
| ``str_float`` | float64 |
| ``bytes``, images and lists of them, ``pkl`` | binary, as stored |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.storage.mds.arrays import ArrayType
from headrace.storage.mds.encoding import Encoding, ValueKind

ENCODING_KEY = b"headrace.mds.encoding"
"""Metadata of a field: the encoding from which it was read, and with which it is written."""

FORMAT_KEY = b"headrace.format"
"""Metadata of a field: the format of its bytes or text, such as ``jpeg`` or ``json``."""

UNKNOWN_ARRAYS = ArrayType(np.dtype(np.uint8), 1)
"""The properties of arrays for a column without samples."""


def arrow_field(
    name: str, encoding: Encoding, *, arrays: ArrayType | None = None, wide: bool = False
) -> pa.Field[Any]:
    """Return the field of a column, not nullable.

    Args:
        name: The name of the column.
        encoding: The encoding of the column.
        arrays: The properties of its arrays found in samples, if the encoding does not give them.
        wide: Use 64-bit offsets, for shards of more than 2 GiB.
    """
    metadata = {ENCODING_KEY: encoding.text.encode()}
    if encoding.format is not None:
        metadata[FORMAT_KEY] = encoding.format.encode()
    kind = arrow_type(encoding, arrays=arrays, wide=wide)
    return pa.field(name, kind, nullable=False, metadata=metadata)


def arrow_type(
    encoding: Encoding, *, arrays: ArrayType | None = None, wide: bool = False
) -> pa.DataType:
    """Return the type of a column; the arguments are those of `arrow_field`."""
    match encoding.kind:
        case ValueKind.SCALAR:
            return number_type(encoding.dtype)
        case ValueKind.ARRAY if encoding.shape is not None:
            return _tensor_type(number_type(encoding.dtype), encoding.shape)
        case ValueKind.ARRAY:
            return _ragged_type(arrays or _unknown(encoding), wide=wide)
        case ValueKind.FLOAT_TEXT:
            return pa.float64()
        case ValueKind.TEXT:
            return pa.large_string() if wide else pa.string()
        case ValueKind.BYTES | ValueKind.PICKLE:
            return pa.large_binary() if wide else pa.binary()


def number_type(dtype: np.dtype[Any] | None) -> pa.DataType:
    """Return the Arrow type of a NumPy number."""
    assert dtype is not None
    return pa.from_numpy_dtype(dtype)


def _tensor_type(item: pa.DataType, shape: tuple[int, ...]) -> pa.DataType:
    if len(shape) == 1:
        return pa.list_(_item(item), shape[0])
    return pa.fixed_shape_tensor(item, shape)


def _ragged_type(arrays: ArrayType, *, wide: bool) -> pa.DataType:
    if arrays.is_mixed:
        return _mixed_type(arrays, wide=wide)
    item = _item(number_type(arrays.dtype))
    items = pa.large_list(item) if wide else pa.list_(item)
    if arrays.axes == 1:
        return items
    assert arrays.axes is not None
    shape = pa.list_(_item(pa.int32()), arrays.axes)
    return pa.struct(
        [pa.field("data", items, nullable=False), pa.field("shape", shape, nullable=False)]
    )


def _mixed_type(arrays: ArrayType, *, wide: bool) -> pa.DataType:
    shape = pa.field("shape", pa.list_(_item(pa.int32())), nullable=False)
    if arrays.dtype is None:
        data = pa.field("data", pa.large_binary() if wide else pa.binary(), nullable=False)
        return pa.struct([data, shape, pa.field("dtype", pa.string(), nullable=False)])
    item = _item(number_type(arrays.dtype))
    items = pa.large_list(item) if wide else pa.list_(item)
    return pa.struct([pa.field("data", items, nullable=False), shape])


def _item(kind: pa.DataType) -> pa.Field[Any]:
    return pa.field("item", kind, nullable=False)


def _unknown(encoding: Encoding) -> ArrayType:
    return UNKNOWN_ARRAYS if encoding.dtype is None else ArrayType(encoding.dtype, 1)
