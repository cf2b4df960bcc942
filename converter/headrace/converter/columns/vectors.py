"""Convert vectors of Spark's ML package to lists of numbers, without Python work per vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    Array = pa.Array[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_DENSE = 1


def dense_lists(column: Array) -> pa.ListArray[Any]:
    """Return dense and sparse vectors as lists of float64, null for null vectors.

    Args:
        column: Structs of ``type`` (1 is dense), ``size``, ``indices`` and ``values``, as Spark
            hands vectors over.

    Source: ``VectorUDT`` of pyspark.ml.linalg.
    """
    assert isinstance(column, pa.StructArray), column.type
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    kinds, sizes, indices, values = (column.field(name) for name in _FIELDS)
    counts = _lengths(values, valid)
    is_dense = valid & (_numbers(kinds) == _DENSE)
    lengths = np.where(is_dense, counts, np.where(valid, _numbers(sizes), 0))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    if offsets[-1] >= 2**31:
        raise OverflowError(f"{offsets[-1]} numbers in one batch of vectors")
    flat = np.zeros(int(offsets[-1]))
    starts = offsets[:-1]
    given = _items(values)
    owners = np.repeat(np.arange(len(column)), counts)
    places = np.arange(len(given)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_sparse_item = ~is_dense[owners]
    places[is_sparse_item] = _items(indices)
    flat[starts[owners] + places] = given
    item = pa.field("item", pa.float64(), nullable=False)
    lists: pa.ListArray[Any] = pa.ListArray.from_arrays(  # type: ignore[call-overload] # the stubs take every array of NumPy for bools
        pa.array(offsets.astype(np.int32)),
        pa.array(flat),
        type=pa.list_(item),
        mask=pa.array(~valid) if not valid.all() else None,
    )
    return lists


_FIELDS = ("type", "size", "indices", "values")


def _numbers(array: Array) -> NDArray[np.int64]:
    filled = array.fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(filled, np.int64)


def _lengths(lists: Array, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    assert isinstance(lists, pa.ListArray), lists.type
    lengths = _numbers(lists.value_lengths())
    return np.where(valid, lengths, 0)


def _items(lists: Array) -> NDArray[Any]:
    """Return the items of all lists that are not null, back to back."""
    assert isinstance(lists, pa.ListArray), lists.type
    items: NDArray[Any] = lists.flatten().to_numpy(zero_copy_only=False)
    return items
