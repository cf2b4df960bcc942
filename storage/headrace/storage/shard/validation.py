"""Refuse batches whose buffers contradict each other, at little cost.

Arrow validates offsets and lengths of a block in microseconds, but validating UTF-8 takes a fifth
of the time of decoding a table with text. One pass of NumPy detects ASCII, which most text is. So
Arrow validates columns of ASCII text as bytes, and other columns as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    _Array = pa.Array[Any]  # generic only in pyarrow's stubs

_ASCII_STOP = 0x80


class BatchValidator:
    """Validates batches of one schema; what depends only on the schema is worked out once.

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
            pa.ArrowInvalid: An offset does, or a string is not.
        """
        if not self._bytes_of:
            batch.validate(full=True)
            return
        batch.validate()  # a view of buffers that are too short would read outside them
        columns = batch.columns
        for index, kind in self._bytes_of.items():
            columns[index] = columns[index].view(kind)
        pa.RecordBatch.from_arrays(columns, names=self._names).validate(full=True)
        for index in self._bytes_of:
            if not _is_ascii(columns[index]):
                batch.column(index).validate(full=True)

    def refuse_nulls(self, batch: pa.RecordBatch) -> None:
        """Check that columns that are not nullable hold no nulls.

        Raises:
            ValueError: A column does; the message names it.
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
