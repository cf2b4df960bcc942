"""The samples as an Arrow table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.peers.samples import Column, Items, Samples


def table_of(samples: Samples) -> pa.Table:
    """Return all samples, without copies where Arrow takes the arrays as they are."""
    return pa.table({name: _array(column) for name, column in samples.columns.items()})


def _array(column: Column) -> pa.Array[Any]:
    if isinstance(column, Items):
        buffers = [
            None,
            pa.py_buffer(column.offsets.astype(np.int32).tobytes()),
            pa.py_buffer(column.values.tobytes()),
        ]
        kind = pa.string() if column.is_text else pa.binary()
        return pa.Array.from_buffers(kind, column.offsets.size - 1, buffers)
    if column.ndim == 1:
        numbers: pa.Array[Any] = pa.array(np.ascontiguousarray(column))
        return numbers
    return pa.FixedSizeListArray.from_arrays(pa.array(column.ravel()), column.shape[1])
