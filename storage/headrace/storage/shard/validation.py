"""Refuse batches whose buffers contradict each other, at little cost.

Arrow validates offsets and lengths of a block in microseconds, but takes as long for the UTF-8 of
a table with text as for a fifth of its decoding; text that is ASCII, as most is, is told by one
pass of NumPy. So columns of text are shown to Arrow as bytes, and as text where that pass fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    _Array = pa.Array[Any]  # pyarrow's stubs have these generic, pyarrow itself has not

_ASCII_STOP = 0x80


class BatchValidator:
    """Validates batches of one schema; what follows from it is found out once.

    Args:
        schema: The schema of every batch.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._bytes_of = {
            index: pa.binary() if pa.types.is_string(field.type) else pa.large_binary()
            for index, field in enumerate(schema)
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        }
        self._filled = [
            (index, field.name) for index, field in enumerate(schema) if not field.nullable
        ]
        self._names = [str(index) for index in range(len(schema))]

    def validate(self, batch: pa.RecordBatch) -> None:
        """Check that no offset leads out of its buffer and that strings are UTF-8.

        Raises:
            pa.ArrowInvalid: Something does not; says what.
        """
        if not self._bytes_of:
            batch.validate(full=True)
            return
        batch.validate()  # a view of buffers that are too short would read outside of them
        columns = batch.columns
        for index, kind in self._bytes_of.items():
            columns[index] = columns[index].view(kind)
        pa.RecordBatch.from_arrays(columns, names=self._names).validate(full=True)
        for index in self._bytes_of:
            if not _is_ascii(columns[index]):
                batch.column(index).validate(full=True)

    def refuse_nulls(self, batch: pa.RecordBatch) -> None:
        """Check that columns which may hold no nulls hold none.

        Raises:
            ValueError: One does; says which.
        """
        for index, name in self._filled:
            null_count = batch.column(index).null_count
            if null_count:
                raise ValueError(f"column {name!r} contains {null_count} nulls, none expected")


def _is_ascii(column: _Array) -> bool:
    values = column.buffers()[2]
    if values is None or not values.size:
        return True
    return bool(np.frombuffer(memoryview(values), np.uint8).max() < _ASCII_STOP)
