"""Turn values of Arrow into Python objects, also times that Python cannot represent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def python_value(scalar: pa.Scalar[Any]) -> Any:
    """Return a value as a Python object.

    Times outside of the years 1 to 9999, and nanoseconds without pandas, are texts as Arrow prints
    them.
    """
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return scalar.cast(_with_texts(scalar.type)).as_py()


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type in which times are texts."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if isinstance(kind, pa.MapType):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if isinstance(kind, pa.StructType):
        return pa.struct([part.with_type(_with_texts(part.type)) for part in kind])
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        item = kind.value_field.with_type(_with_texts(kind.value_type))
        if isinstance(kind, pa.FixedSizeListType):
            return pa.list_(item, kind.list_size)
        return pa.large_list(item) if isinstance(kind, pa.LargeListType) else pa.list_(item)
    return kind
