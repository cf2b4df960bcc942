"""Encode Arrow columns as samples, without Python work per sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from headrace.errors import UnsupportedColumnError
from headrace.storage.mds.arrays import array_heads
from headrace.storage.mds.arrow import Array, array_of, is_bytes, is_text
from headrace.storage.mds.choose import array_item, is_variable_tensor
from headrace.storage.mds.encoding import Encoding, ValueKind
from headrace.storage.mds.samples import MAX_SHARD_BYTES, WORD
from headrace.storage.shard.buffers import offsets_of, values_of

_BYTES = pa.large_binary()


def encode_samples(batch: pa.RecordBatch, encodings: Sequence[Encoding]) -> pa.LargeBinaryArray:
    """Return the bytes of each sample.

    Args:
        batch: The columns, in the order of the samples' values.
        encodings: The encoding of each column, from `choose_encoding`.

    Raises:
        UnsupportedColumnError: A column contains a null, or a value of 4 GiB or more.
    """
    values = [
        _encode(batch.column(at), encoding, batch.schema.field(at).name)
        for at, encoding in enumerate(encodings)
    ]
    varying = [part for part, encoding in zip(values, encodings, strict=True) if not encoding.size]
    if varying:
        sizes = np.stack([np.diff(offsets_of(part)) for part in varying], axis=1)
        _refuse_large(sizes, batch)
        values.insert(0, _fixed(np.ascontiguousarray(sizes.astype(WORD)), batch.num_rows))
    return _joined(*values)


def _encode(array: Array, encoding: Encoding, name: str) -> Array:
    if array.null_count:
        raise UnsupportedColumnError(
            f"column {name!r} contains {array.null_count} nulls, which MDS does not support; fill "
            "them, or leave the column out",
            column=name,
        )
    match encoding.kind:
        case ValueKind.SCALAR:
            assert encoding.dtype is not None
            numbers = pc.cast(array, pa.uint8()) if pat.is_boolean(array.type) else array
            return _fixed(values_of(numbers, encoding.dtype), len(array))
        case ValueKind.ARRAY if encoding.shape is not None:
            assert encoding.dtype is not None
            return _fixed(_items(array, encoding.dtype, name), len(array))
        case ValueKind.ARRAY:
            return _ragged(array, encoding, name)
        case ValueKind.FLOAT_TEXT:
            # The text that Python writes; Arrow would write 0 for 0.0.
            return pa.array([str(value) for value in array.to_pylist()], pa.string()).cast(_BYTES)
        case _:
            return _texts(array)


def _texts(array: Array) -> Array:
    if not (is_text(array.type) or is_bytes(array.type)):
        array = pc.cast(array, pa.binary() if pat.is_fixed_size_binary(array.type) else pa.string())
    return pc.cast(array, _BYTES)


def _fixed(values: NDArray[Any], count: int) -> Array:
    """Return consecutive values of the same size as bytes."""
    size = values.nbytes // count if count else 0
    return array_of(_BYTES, count, [np.arange(count + 1, dtype=np.int64) * size, values])


def _items(array: Array, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Return the elements of arrays with the same shape."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    while isinstance(array, pa.FixedSizeListArray):
        size = array.type.list_size
        array = array.values.slice(array.offset * size, len(array) * size)
    _refuse_null_items(array, name)
    return values_of(array, dtype)


def _ragged(array: Array, encoding: Encoding, name: str) -> Array:
    """Return arrays of any shape, each with its shape before it."""
    arrays = array_item(array.type)
    assert arrays is not None
    dtype, shape = arrays
    count = len(array)
    if shape is not None:
        shapes = np.tile(np.array(shape, np.int64), (count, 1))
        elements = _fixed(_items(array, dtype, name), count)
    elif is_variable_tensor(array.type):
        assert isinstance(array, pa.StructArray)
        data, sides = array.flatten()
        shapes = _items(sides, np.dtype(np.int32), name).reshape(count, -1).astype(np.int64)
        elements = _list_bytes(data, dtype, name)
        _refuse_bad_shapes(shapes, elements, dtype, name)
    else:
        shapes = np.diff(offsets_of(array)).astype(np.int64)[:, np.newaxis]
        elements = _list_bytes(array, dtype, name)
    heads, edges = array_heads(shapes, dtype if encoding.dtype is None else None)
    head = array_of(_BYTES, count, [edges, heads])
    return _joined(head, elements)


def _list_bytes(array: Array, dtype: np.dtype[Any], name: str) -> Array:
    edges = offsets_of(array).astype(np.int64)
    assert isinstance(array, pa.ListArray | pa.LargeListArray)
    items = array.values.slice(int(edges[0]), int(edges[-1] - edges[0]))
    _refuse_null_items(items, name)
    return array_of(
        _BYTES, len(array), [(edges - edges[0]) * dtype.itemsize, values_of(items, dtype)]
    )


def _joined(*parts: Array) -> pa.LargeBinaryArray:
    """Return the bytes of all parts of each sample, back to back."""
    joined: pa.LargeBinaryArray = pc.binary_join_element_wise(*parts, pa.scalar(b"", _BYTES))  # type: ignore[call-overload] # the stubs know fewer types
    return joined


def _refuse_null_items(items: Array, name: str) -> None:
    if items.null_count:
        raise UnsupportedColumnError(
            f"column {name!r} contains arrays with {items.null_count} nulls inside, which MDS does "
            "not support; fill them, or leave the column out",
            column=name,
        )


def _refuse_bad_shapes(
    shapes: NDArray[np.int64], elements: Array, dtype: np.dtype[Any], name: str
) -> None:
    wanted = shapes.prod(axis=1) * dtype.itemsize
    is_bad = (shapes < 0).any(axis=1) | (wanted != np.diff(offsets_of(elements)))
    if is_bad.any():
        at = int(is_bad.argmax())
        raise UnsupportedColumnError(
            f"column {name!r} has at row {at} of a batch a shape {shapes[at].tolist()} that does "
            "not match its elements",
            column=name,
        )


def _refuse_large(sizes: NDArray[Any], batch: pa.RecordBatch) -> None:
    if sizes.size and int(sizes.max()) > MAX_SHARD_BYTES:
        raise UnsupportedColumnError(
            f"a value of {sizes.max()} bytes found in {batch.schema.names}, at most "
            f"{MAX_SHARD_BYTES} expected; leave its column out"
        )
