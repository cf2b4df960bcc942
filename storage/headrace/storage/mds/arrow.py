"""Helpers for Arrow, with types that its stubs lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array: TypeAlias = "pa.Array[Any]"  # the type of an array's values is known only at run time
Field: TypeAlias = "pa.Field[Any]"

MAX_NARROW = 2**31 - 1
"""The largest offset of arrays that are not `is_wide`."""


def array_of(
    kind: pa.DataType, count: int, values: Sequence[NDArray[Any]], *, items: Array | None = None
) -> Array:
    """Make an array of ``count`` values without nulls, without a copy.

    Args:
        kind: Its type.
        count: Its values.
        values: Its buffers after the validity buffer; each must be contiguous.
        items: Its child, if it is a list.
    """
    buffers = [None, *(pa.py_buffer(part.data) for part in values)]
    return pa.Array.from_buffers(kind, count, buffers, children=None if items is None else [items])


def fixed_lists(items: Array, kind: pa.DataType) -> Array:
    """Make fixed-size lists of ``kind`` from consecutive items."""
    lists: Array = pa.FixedSizeListArray.from_arrays(items, type=kind)  # type: ignore[call-overload] # the stubs lack a type given as a value
    return lists


def nulls_of(kind: pa.DataType, count: int) -> Array:
    """Make an empty array."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, nulls_of(kind.storage_type, count))
    nulls: Array = pa.nulls(count, kind)  # type: ignore[call-overload] # the stubs lack a type of any kind
    return nulls


def item_type(kind: pa.DataType) -> pa.DataType:
    """Return the item type of a list or tensor."""
    item: pa.DataType = kind.value_type  # type: ignore[attr-defined] # of lists and tensors alone
    return item


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether values are bytes of any length."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def is_wide(kind: pa.DataType) -> bool:
    """Return whether offsets have 64 bits."""
    return (
        pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_list(kind)
    )


def offset_dtype(kind: pa.DataType) -> type[np.int32 | np.int64]:
    """Return the type of the offsets of text, bytes or lists."""
    return np.int64 if is_wide(kind) else np.int32
