"""The raw bytes of a sample, defined independently of libraries and slices.

A fixed-width value counts its width (a bool one byte); a string or binary its length and the width
of one offset; a list its items and one offset; a fixed-size list or a tensor its items; a struct
its fields. Validity is not counted. So the raw bytes of blocks, shards and datasets are sums over
their samples.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.shard.buffers import offsets_of

_Sizes: TypeAlias = NDArray[np.int64] | int  # one number if all values have the same size


def sample_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the raw bytes of each sample, ``(samples,) int64``."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += _value_bytes(column)
    return sizes


def _value_bytes(array: pa.Array[Any]) -> _Sizes:  # noqa: PLR0911 - one case a kind of array
    match array:
        case pa.ExtensionArray():
            storage: pa.Array[Any] = array.storage
            return _value_bytes(storage)
        case pa.FixedSizeListArray():
            return _fixed_list_bytes(array)
        case pa.StructArray():
            return _struct_bytes(array)
        case pa.MapArray():
            pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
            return _list_bytes(array, pairs)
        case pa.ListArray() | pa.LargeListArray():
            return _list_bytes(array, array.values)
        case pa.StringArray() | pa.BinaryArray() | pa.LargeStringArray() | pa.LargeBinaryArray():
            offsets = offsets_of(array)
            lengths: NDArray[np.int64] = np.diff(offsets).astype(np.int64)
            return lengths + offsets.itemsize
        case _:
            return max(8, int(array.type.bit_width)) // 8


def _struct_bytes(array: pa.StructArray) -> _Sizes:
    sizes = np.zeros(len(array), np.int64)
    for field in array.flatten():
        sizes += _value_bytes(field)
    return sizes


def _fixed_list_bytes(array: pa.FixedSizeListArray[Any, Any]) -> _Sizes:
    size = array.type.list_size
    items = _value_bytes(array.values.slice(array.offset * size, len(array) * size))
    if isinstance(items, int):
        return items * int(size)
    return np.asarray(items.reshape(len(array), size).sum(axis=1), np.int64)


def _list_bytes(array: pa.Array[Any], values: pa.Array[Any]) -> NDArray[np.int64]:
    offsets = offsets_of(array)
    first, last = int(offsets[0]), int(offsets[-1])
    items = _value_bytes(values.slice(first, last - first))
    if isinstance(items, int):
        return np.diff(offsets).astype(np.int64) * items + offsets.itemsize
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(items)])
    return np.diff(ends[offsets - first]) + offsets.itemsize
