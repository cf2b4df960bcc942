"""Parse names of types to Arrow types, without Spark's classes."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import BadArgumentError

# Spark SQL's names for types that have another name in Arrow.
_SQL_NAMES: dict[str, pa.DataType] = {
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "date": pa.date32(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "tinyint": pa.int8(),
}


def named_type(text: str | pa.DataType, *, column: str) -> pa.DataType:
    """Return the Arrow type for a name.

    Args:
        text: A name of Arrow (``uint8``, ``float16``), of Spark's SQL (``smallint``), or a type.
        column: The column of that type, for the error.

    Raises:
        BadArgumentError: There is no type of that name.
    """
    if not isinstance(text, str):
        return text
    named = _SQL_NAMES.get(text)
    if named is not None:
        return named
    try:
        return pa.type_for_alias(text)  # type: ignore[call-overload,no-any-return] # any text, and checked
    except ValueError as error:
        raise BadArgumentError(
            f"types has {text!r} for column {column!r}, expected a name such as uint8, int32, "
            "float16, float32, string, date or timestamp, or a type of pyarrow",
            field="types",
        ) from error
