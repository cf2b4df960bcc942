"""Cast columns, and find the rows that another type cannot represent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    Array = pa.Array[Any]  # generic only in pyarrow's stubs


def cast_column(column: Array, kind: pa.DataType) -> Array:
    """Return a column as another type.

    Raises:
        pyarrow.ArrowInvalid: A value does not fit, a number would become infinite, or a text has
            hexadecimal digits, which are never meant in a column of decimal numbers.
    """
    if pa.types.is_string(column.type) and pa.types.is_integer(kind):
        hexadecimal = pc.match_substring(column, "0x", ignore_case=True)
        if pc.any(hexadecimal).as_py():
            raise pa.ArrowInvalid("a number is hexadecimal")
    made: Array = column.cast(kind)
    if pa.types.is_floating(kind):
        infinite = pc.is_inf(made)
        if pc.any(infinite).as_py() and not _says_infinite(column.filter(infinite)):
            raise pa.ArrowInvalid("a number would become infinite")
    return made


def _says_infinite(values: Array) -> bool:
    if pa.types.is_floating(values.type):
        return bool(pc.all(pc.is_inf(values)).as_py())
    if not pa.types.is_string(values.type):
        return False
    return bool(pc.all(pc.match_substring(pc.utf8_lower(values), "inf")).as_py())


def unfit_rows(column: Array, kind: pa.DataType) -> list[int]:
    """Return the rows whose values another type cannot represent, by bisection."""
    found: list[int] = []
    spans = [(0, len(column))]
    while spans:
        start, stop = spans.pop()
        try:
            cast_column(column.slice(start, stop - start), kind)
        except (pa.ArrowInvalid, OverflowError):
            middle = (start + stop) // 2
            if stop - start == 1:
                found.append(start)
            else:
                spans += [(middle, stop), (start, middle)]
    return found
