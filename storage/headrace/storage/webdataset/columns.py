"""Derive types from the endings of members' names, and make columns from members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.shard.column_facts import FORMAT_KEY

if TYPE_CHECKING:
    Array = pa.Array[Any]  # pyarrow's stubs have these generic, pyarrow itself has not
    Field = pa.Field[Any]

KEY = "__key__"
"""The column of the samples' names, as the webdataset package calls it."""

MAX_COLUMNS = 1000
MAX_VALUE_BYTES = 2**31 - 1 - (64 << 20)
"""The most bytes of one member: the values of a block have 32-bit offsets, and a block may have
others.
"""

_MAX_DIGITS = 64  # with white space
_TEXT = {"txt", "text", "transcript"}
_INTEGER = {"cls", "cls2", "index", "id"}
_FORMATS = {"json": "json", "jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp"}


def column_field(name: str, *, nullable: bool) -> Field:
    """Return the field of a column, whose type follows from its name after the last dot."""
    ending = name.rpartition(".")[2]
    kind: pa.DataType = pa.binary()
    if ending in _TEXT or ending == "json":
        kind = pa.string()
    elif ending in _INTEGER:
        kind = pa.int64()
    form = _FORMATS.get(ending)
    metadata: dict[bytes | str, bytes | str] | None = {FORMAT_KEY: form} if form else None
    return pa.field(name, kind, nullable, metadata=metadata)


def column_of(values: Sequence[memoryview], present: NDArray[np.bool_], field: Field) -> Array:
    """Return a column.

    Args:
        values: The contents, for the samples that have one.
        present: ``(samples,) bool``; which samples these are.
        field: What the column must be.

    Raises:
        ValueError: A content is not a whole number, or not UTF-8; the message says which.
    """
    if pa.types.is_integer(field.type):
        return _integers(values, present)
    lengths = np.zeros(len(present) + 1, np.int32)
    lengths[1:][present] = [len(value) for value in values]
    buffers = [
        None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little").tobytes()),
        pa.py_buffer(np.cumsum(lengths, dtype=np.int32).tobytes()),
        pa.py_buffer(b"".join(values)),
    ]
    column: Array = pa.Array.from_buffers(field.type, len(present), buffers)
    column.validate(full=True)
    return column


def _integers(values: Sequence[memoryview], present: NDArray[np.bool_]) -> Array:
    numbers = np.zeros(len(present), np.int64)
    try:
        numbers[present] = [_integer(bytes(value)) for value in values]
    except OverflowError as error:
        raise ValueError(str(error)) from error
    column: Array = pa.array(numbers, mask=~present)
    return column


def _integer(text: bytes) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{len(text)} bytes, a whole number expected")
    return int(text)
