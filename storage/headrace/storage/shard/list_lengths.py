"""The lengths of lists in a column, and which columns hold lists of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray


def list_lengths(column: pa.Array[Any]) -> NDArray[np.int64]:
    """Return the number of elements of each list in a column, ``(rows,) int64``; 0 for nulls."""
    if pat.is_fixed_size_list(column.type):
        found = np.full(len(column), column.type.list_size, np.int64)
        if column.null_count:
            found[np.asarray(column.is_null())] = 0
        return found
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return np.asarray(lengths.cast(pa.int64()))


def is_number_list(kind: pa.DataType) -> bool:
    """Return whether a column of a type holds lists of numbers."""
    if not isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return False
    item: pa.DataType = kind.value_type
    return pat.is_integer(item) or pat.is_floating(item)
