"""Cast columns, and name the sample whose value the new type cannot represent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    Array = pa.Array[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_SHOWN = 60  # characters of a value in an error


def checked_cast(column: Array, kind: pa.DataType, *, name: str, first_sample: int) -> Array:
    """Return ``column`` as ``kind``.

    Refuses numbers out of range, fractions cast to integers, floats that become infinite, times
    that a date or a coarser unit drops, fields of structs that the type lacks, text that is not a
    number, and numbers but 0 and 1 cast to bools. Floats may lose digits.

    Args:
        column: A column of any type that Arrow can cast.
        kind: The requested type.
        name: The name of the column, for the error.
        first_sample: The number of earlier samples of the partition, for the error.

    Raises:
        BadArgumentError: A value does not fit; names the sample and the value.
    """
    if column.type == kind:
        return column
    try:
        cast = _cast(column, kind)
    except (pa.ArrowInvalid, OverflowError) as error:
        at, reason = _first_unfit(column, kind) or (0, error)  # Arrow's may be about another one
        raise BadArgumentError(
            f"column {name!r}: sample {first_sample + at} of its task is {_short(column[at])}, "
            f"which {kind} cannot represent ({reason}); choose another type, or correct the value",
            field=name,
        ) from error
    return cast


def _cast(column: Array, kind: pa.DataType) -> Array:
    cast: Array = column.cast(kind)
    for before, after in _leaves(column, cast):
        # Arrow checks integers, but a float64 that is too large silently becomes infinite.
        narrows = pa.types.is_floating(after.type) and before.type != after.type
        if narrows and _infinite(after) > _infinite(before):
            raise OverflowError("it would become infinite")
        # Every other number would be true.
        is_number = pa.types.is_integer(before.type) or pa.types.is_floating(before.type)
        if is_number and pa.types.is_boolean(after.type) and after.cast(before.type) != before:
            raise OverflowError("it is neither 0 nor 1")
        # It checks the units of times, but a date silently drops the time of day.
        if pa.types.is_date(after.type) and pa.types.is_timestamp(before.type):
            again: Array = after.cast(pa.timestamp(before.type.unit)).cast(pa.int64())
            if again != _local(before).cast(pa.int64()):
                raise OverflowError("its time of day would be lost")
    return cast


def _leaves(before: Any, after: Any) -> Iterator[tuple[Array, Array]]:
    """Yield the columns without parts that two nested columns have, for each part of the second.

    Raises:
        OverflowError: The second column lacks a field of a struct, which a cast silently drops.
    """
    before, after = (getattr(column, "storage", column) for column in (before, after))
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(after.type, pa.MapType):
        before = pa.concat_arrays([before])  # keys and items of a slice are those of the whole
        pairs = (before.keys, after.keys), (before.items, after.items)
    elif isinstance(after.type, pa.StructType):
        given = dict(zip(before.type.names, before.flatten(), strict=True))
        if lost := [name for name in given if name not in after.type.names]:
            raise OverflowError(f"its field {lost[0]!r} would be lost")
        parts = zip(after.type.names, after.flatten(), strict=True)
        pairs = ((given[name], part) for name, part in parts if name in given)
    elif isinstance(after.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        pairs = ((before.flatten(), after.flatten()),)
    else:
        pairs = ()
        yield before, after
    for pair in pairs:
        yield from _leaves(*pair)


def _local(times: Array) -> Array:
    """Return times as clocks show them in their time zone, whose dates those of a cast are."""
    if not times.type.tz:
        return times
    return pc.local_timestamp(times)  # type: ignore[call-overload,no-any-return] # the stubs know one unit


def _infinite(column: Array) -> int:
    if not pa.types.is_floating(column.type):
        return 0
    return int(np.isinf(column.to_numpy(zero_copy_only=False)).sum())


def _first_unfit(column: Array, kind: pa.DataType) -> tuple[int, Exception] | None:
    """Return the first sample that does not fit, and why; slow, and only called if there is one."""
    for at in range(len(column)):
        try:
            _cast(column.take([at]), kind)  # a slice would keep its neighbours' items
        except (pa.ArrowInvalid, OverflowError) as error:
            return at, error
    return None


def _short(value: pa.Scalar[Any]) -> str:
    text = repr(value.as_py())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
