"""Arrow buffers as NumPy arrays, without a copy.

pyarrow's own ``to_numpy`` imports pandas if it is installed, which takes 40 MB in each process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def offsets_of(array: pa.Array[Any]) -> NDArray[np.int32 | np.int64]:
    """Return the offsets of a list, map, string or binary array, ``(values + 1,)``.

    Args:
        array: May be a slice; the offsets are then those of the slice.
    """
    wide = isinstance(array, pa.LargeListArray | pa.LargeStringArray | pa.LargeBinaryArray)
    width = np.dtype(np.int64 if wide else np.int32)
    buffer = array.buffers()[1]
    if buffer is None or buffer.size == 0:  # an empty array may have no offsets
        return np.zeros(len(array) + 1, width)
    return np.frombuffer(memoryview(buffer), width, len(array) + 1, array.offset * width.itemsize)


def values_of(array: pa.Array[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of an array of numbers without nulls, ``(values,)`` of ``kind``.

    Args:
        array: May be a slice.
        kind: The dtype of the values.
    """
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(0, kind)
    return np.frombuffer(memoryview(buffer), kind, len(array), array.offset * kind.itemsize)
