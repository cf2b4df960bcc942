"""Read Hive partitions: ``year=2024/month=05/part-0.parquet`` gives the values of two columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from headrace.errors import UnsupportedColumnError

if TYPE_CHECKING:
    Array = pa.Array[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile("-?[0-9]{1,18}")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


def partition_columns(names: Sequence[str]) -> pa.RecordBatch:
    """Return the columns given by the folders of files, one row per file.

    A column of whole numbers is int32, or int64 if necessary; a column of dates (``2024-05-31``) is
    date32; any other is string. Spark and pyarrow infer the same types.

    Args:
        names: Names of the files, relative to the root of the dataset.

    Raises:
        UnsupportedColumnError: Two files are in folders with different keys.
    """
    stated = [_stated(name) for name in names]
    keys = list(stated[0]) if stated else []
    for name, values in zip(names, stated, strict=True):
        if list(values) != keys:
            key = [*sorted(set(keys) ^ set(values)), *keys][0]
            raise UnsupportedColumnError(
                f"file {name} is in folders for {list(values)}, but file {names[0]} is in folders "
                f"for {keys}; move it to where it belongs",
                column=key,
                shard=name,
            )
    columns = [_typed([values[key] for values in stated]) for key in keys]
    schema = pa.schema(
        [pa.field(k, c.type, c.null_count > 0) for k, c in zip(keys, columns, strict=True)]
    )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _stated(name: str) -> dict[str, str | None]:
    folders = [part.partition("=") for part in name.split("/")[:-1]]
    return {unquote(key): _value(text) for key, mark, text in folders if mark and key}


def _value(text: str) -> str | None:
    return None if text == NULL_VALUE else unquote(text)


def _typed(values: Sequence[str | None]) -> Array:
    known = [value for value in values if value is not None]
    if known and all(_INTEGER.fullmatch(value) for value in known):
        numbers: Array = pa.array([None if v is None else int(v) for v in values], pa.int64())
        return _narrowed(numbers)
    if known and all(_is_date(value) for value in known):
        days = [None if v is None else date.fromisoformat(v) for v in values]
        return pa.array(days, pa.date32())
    return pa.array(values, pa.string())


def _narrowed(numbers: Array) -> Array:
    try:
        narrow: Array = numbers.cast(pa.int32())
    except pa.ArrowInvalid:
        return numbers
    return narrow


def _is_date(value: str) -> bool:
    if not _DATE.fullmatch(value):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True
