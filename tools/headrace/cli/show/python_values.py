"""Turn Arrow values into Python objects, including times that Python cannot represent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def python_value(scalar: pa.Scalar[Any]) -> Any:
    """Return a value as a Python object.

    Times outside the years 1 to 9999, and nanoseconds without pandas, become texts as Arrow prints
    them.
    """
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return scalar.cast(_with_strings(scalar.type)).as_py()


def _with_strings(kind: pa.DataType) -> pa.DataType:
    """Return the type with strings in place of times."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if isinstance(kind, pa.MapType):
        return pa.map_(_with_strings(kind.key_type), _with_strings(kind.item_type))
    if isinstance(kind, pa.StructType):
        return pa.struct([part.with_type(_with_strings(part.type)) for part in kind])
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        item = kind.value_field.with_type(_with_strings(kind.value_type))
        if isinstance(kind, pa.FixedSizeListType):
            return pa.list_(item, kind.list_size)
        return pa.large_list(item) if isinstance(kind, pa.LargeListType) else pa.list_(item)
    return kind
