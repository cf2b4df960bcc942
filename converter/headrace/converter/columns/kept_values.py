"""Find values of Python that Arrow alters without a word where it makes a column of them.

`pyarrow.array` refuses most of what a type cannot represent. It takes these, and alters them: a
number too large for a float becomes infinite; an integer drops a fraction; times drop what is finer
than their unit; dates drop the time; structs drop fields that they do not have; arrays of NumPy's
times are taken for the type's unit, whatever theirs is; numbers of pandas are true but for 0.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    Array = pa.Array[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_TRUTHS = {bool, type(None)}
_WHOLE = {int, *_TRUTHS}
_ALTERING = pa.types.is_integer, pa.types.is_boolean, pa.types.is_temporal
_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}


def first_altered(values: Sequence[object], made: Array) -> tuple[int, str] | None:
    """Return the place of the first value that a column does not hold as it is, and what it lost.

    Args:
        values: The values; nan counts as null, as it does in pandas.
        made: The column that Arrow made of them.
    """
    if not _may_alter(made.type, has_infinite=_has_infinite(made)) or _are_whole(values, made.type):
        return None
    for at, value in enumerate(values):
        loss = _loss(value, made.type)
        if loss:
            return at, loss
    return None


def _may_alter(kind: pa.DataType, *, has_infinite: bool) -> bool:
    """Return whether a type alters values; of floats, only those that became infinite are."""
    if isinstance(kind, pa.BaseExtensionType):
        return _may_alter(kind.storage_type, has_infinite=has_infinite)
    if pa.types.is_floating(kind):
        return has_infinite and not pa.types.is_float64(kind)
    if pa.types.is_struct(kind):
        return True
    parts = [kind.field(at).type for at in range(kind.num_fields)]
    if parts:
        return any(_may_alter(part, has_infinite=has_infinite) for part in parts)
    return any(alters(kind) for alters in _ALTERING)


def _has_infinite(column: Array) -> bool:
    if isinstance(column, pa.ExtensionArray):
        return _has_infinite(column.storage)
    if isinstance(column.type, pa.MapType):
        assert isinstance(column, pa.MapArray)
        return _has_infinite(column.keys) or _has_infinite(column.items)
    if isinstance(column, pa.StructArray):
        return any(map(_has_infinite, column.flatten()))
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _has_infinite(column.flatten())
    if not pa.types.is_floating(column.type):
        return False
    return bool(np.isinf(column.to_numpy(zero_copy_only=False)).any())


def _loss(value: Any, kind: pa.DataType) -> str:
    """Return what a value loses, or an empty text."""
    if isinstance(kind, pa.BaseExtensionType):
        return _loss(value, kind.storage_type)
    if isinstance(kind, pa.StructType):
        return _loss_of_fields(value, kind) if isinstance(value, Mapping) else ""
    if isinstance(kind, pa.MapType):
        pairs = value.items() if isinstance(value, Mapping) else _items(value)
        sides = (kind.key_type, kind.item_type)
        return _first(_loss(part, side) for pair in pairs for part, side in zip(pair, sides))  # noqa: B905 - Arrow has refused other pairs
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return _loss_of_items(_items(value), kind.value_type)
    if getattr(value, "ndim", None) == 0:  # of NumPy or torch, which are no numbers of Python
        value = value.item()
    return (
        _loss_of_time(value, kind) if pa.types.is_temporal(kind) else _loss_of_number(value, kind)
    )


def _first(losses: Iterable[str]) -> str:
    return next(filter(None, losses), "")


def _items(value: Any) -> Any:
    return value if hasattr(value, "__iter__") and not isinstance(value, str | bytes) else ()


def _are_whole(items: Any, kind: pa.DataType) -> bool:
    is_bool = pa.types.is_boolean(kind)
    if not is_bool and not pa.types.is_integer(kind):
        return False
    if isinstance(items, np.ndarray) and items.dtype != object:
        return items.dtype.kind in ("b" if is_bool else "iub")
    return set(map(type, items)) <= (_TRUTHS if is_bool else _WHOLE)


def _loss_of_items(items: Any, kind: Any) -> str:
    if isinstance(items, np.ndarray) and items.dtype.kind in "mM" and pa.types.is_temporal(kind):
        unit = np.datetime_data(items.dtype)[0]
        is_kept = unit == getattr(kind, "unit", None)
        return "" if is_kept else f"its unit is {unit}, which would be lost"
    return "" if _are_whole(items, kind) else _first(_loss(item, kind) for item in items)


def _loss_of_fields(value: Mapping[Any, Any], kind: pa.StructType) -> str:
    fields = {field.name: field.type for field in kind}
    strange = next((name for name in value if name not in fields), None)
    if strange is not None:
        return f"its field {strange!r} would be lost"
    return _first(_loss(value.get(name), part) for name, part in fields.items())


def _loss_of_number(value: object, kind: pa.DataType) -> str:
    if not isinstance(value, Real | Decimal) or not math.isfinite(value):
        return ""
    if pa.types.is_boolean(kind):
        return "" if value in {0, 1} else "it is neither 0 nor 1"
    if pa.types.is_integer(kind):
        return "its fraction would be lost" if value % 1 else ""
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            becomes = np.dtype(kind.to_pandas_dtype()).type(value)
        return "it would become infinite" if np.isinf(becomes) else ""
    return ""


def _loss_of_time(value: object, kind: Any) -> str:
    if value != value:  # noqa: PLR0124 - pandas' NaT is a datetime
        return ""
    if isinstance(value, Real | Decimal):
        return "its fraction would be lost" if value % 1 else ""
    if pa.types.is_date(kind):
        has_time = isinstance(value, dt.datetime) and value.time() != dt.time.min
        return "its time of day would be lost" if has_time else ""
    if isinstance(value, dt.datetime | dt.time):
        microseconds, nanoseconds = value.microsecond, getattr(value, "nanosecond", 0)
    elif isinstance(value, dt.timedelta):
        microseconds, nanoseconds = value.microseconds, getattr(value, "nanoseconds", 0)
    else:
        return ""
    is_finer = microseconds % _MICROSECONDS[kind.unit] or (kind.unit != "ns" and nanoseconds)
    return f"what is finer than its unit, {kind.unit}, would be lost" if is_finer else ""
