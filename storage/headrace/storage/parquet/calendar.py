"""Convert dates of files that count days before 1582-10-15 in the Julian calendar, as Spark does.

Spark 2, and Spark 3 and later on request, store an old date so that the day with its name in the
hybrid calendar of Java is meant: 1400-03-01 is stored as what Arrow and all others take for
1400-03-10. The footer says so. Timestamps before 1900 depend on the rules of a time zone in Java
as well, which the footer names; only those of UTC are converted, and others are refused.

Source: ``DataSourceUtils.datetimeRebaseSpec`` and ``RebaseDateTime`` of Spark 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.errors import UnsupportedColumnError

if TYPE_CHECKING:
    Array = pa.Array[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_VERSION = b"org.apache.spark.version"
_ZONE = b"org.apache.spark.timeZone"
_LEGACY_DATES = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"
_HIVE_PROLEPTIC = b"writer.date.proleptic"
_FIRST_CORRECT = {_LEGACY_DATES: (3, 0), _LEGACY_INT96: (3, 1)}
_UTC = {"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z"}

# From each of these Julian days since 1970 on, that many days are added; before the first there is
# no year 1.
_SWITCHES = np.array(
    (
        *(-719164, -682945, -646420, -609895, -536845, -500320, -463795),
        *(-390745, -354220, -317695, -244645, -208120, -171595, -141427),
    )
)
_ADDED = np.array([2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, 0])
_LAST_SWITCH = int(_SWITCHES[-1])  # 1582-10-15
_FIRST_ALIKE = -25567  # 1900-01-01; timestamps are the same in every zone from then on
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_ADVICE = (
    "write it again with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED and "
    "spark.sql.parquet.int96RebaseModeInWrite=CORRECTED, or convert the DataFrame with write_shards"
)


@dataclass(frozen=True, slots=True)
class Calendar:
    """How a file counts old dates.

    Attributes:
        dates: Whether its dates and timestamps of 64 bits are in the hybrid calendar.
        int96: Whether its timestamps of 96 bits are.
        zone: The time zone of its writer; empty if the footer does not say.
        is_hive: Whether Hive wrote it, whose readers and Spark disagree about such dates.
    """

    dates: bool
    int96: bool
    zone: str = ""
    is_hive: bool = False


def calendar_of(metadata: pq.FileMetaData) -> Calendar | None:
    """Return how a file counts old dates; None if as everybody does."""
    notes = metadata.metadata or {}
    version = notes.get(_VERSION)
    if version is None:  # Spark's readers then take it for right, too
        is_hive = notes.get(_HIVE_PROLEPTIC) == b"false"
        return Calendar(dates=True, int96=False, is_hive=True) if is_hive else None
    legacy = {
        key: key in notes or _release(version) < correct for key, correct in _FIRST_CORRECT.items()
    }
    if not any(legacy.values()):
        return None
    zone = notes.get(_ZONE, b"").decode(errors="replace")
    return Calendar(legacy[_LEGACY_DATES], legacy[_LEGACY_INT96], zone)


def in_proleptic_calendar(table: pa.Table, metadata: pq.FileMetaData, *, file: str) -> pa.Table:
    """Return what was read from a file, with the dates that its writer meant.

    Args:
        table: Some columns of a row group, as Arrow reads them.
        metadata: The footer of the file.
        file: Its name, for errors.

    Raises:
        UnsupportedColumnError: A column holds old values that cannot be converted exactly; names
            the column, the file and what to do.
    """
    calendar = calendar_of(metadata)
    if calendar is None:
        return table
    int96 = _int96_columns(metadata)
    for place, field in enumerate(table.schema):
        column = table.column(place)
        chunks = [
            _converted(chunk, calendar, is_int96=field.name in int96, where=(field.name, file))
            for chunk in column.chunks
        ]
        if any(new is not old for new, old in zip(chunks, column.chunks, strict=True)):
            table = table.set_column(place, field, pa.chunked_array(chunks, column.type))
    return table


def _release(version: bytes) -> tuple[int, int]:
    """Return the first two parts of a version, the highest if there are none."""
    found = re.match(rb"(\d{1,9})\.(\d{1,9})", version)
    return (int(found[1]), int(found[2])) if found else (1 << 30, 0)


def _int96_columns(metadata: pq.FileMetaData) -> set[str]:
    columns = (metadata.schema.column(index) for index in range(metadata.num_columns))
    return {column.path.split(".")[0] for column in columns if column.physical_type == "INT96"}


def _converted(
    array: Array, calendar: Calendar, *, is_int96: bool, where: tuple[str, str]
) -> Array:
    if not pa.types.is_nested(array.type):
        return _converted_leaf(array, calendar, is_int96=is_int96, where=where)
    for leaf in _leaves(array):
        if _converted_leaf(leaf, calendar, is_int96=is_int96, where=where) is not leaf:
            raise _refused(leaf, calendar, where, "inside of lists or structs")
    return array


def _converted_leaf(
    array: Array, calendar: Calendar, *, is_int96: bool, where: tuple[str, str]
) -> Array:
    kind = array.type
    is_date = pa.types.is_date32(kind)
    # Spark's timestamps without a zone, which are never of 96 bits, are in no calendar.
    is_time = pa.types.is_timestamp(kind) and (kind.tz is not None or is_int96)
    if not (is_date or is_time) or not (calendar.int96 if is_time and is_int96 else calendar.dates):
        return array
    per_day = 1 if is_date else _PER_DAY[kind.unit]
    is_in_utc = is_date or calendar.zone in _UTC
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    numbers = _numbers(array, pa.int32() if is_date else pa.int64())
    days = np.floor_divide(numbers[valid], per_day)
    if not len(days) or days.min() >= (_LAST_SWITCH if is_in_utc else _FIRST_ALIKE):
        return array
    if calendar.is_hive or not is_in_utc or days.min() < _SWITCHES[0]:
        raise _refused(array, calendar, where, "")
    return _shifted(array, days, per_day, valid)


def _shifted(
    array: Array, days: NDArray[np.int64], per_day: int, valid: NDArray[np.bool_]
) -> Array:
    storage = pa.int32() if per_day == 1 else pa.int64()
    numbers = _numbers(array, storage)
    numbers[valid] += _ADDED[np.searchsorted(_SWITCHES, days, side="right") - 1] * per_day
    moved: Array = pa.array(numbers.astype(storage.to_pandas_dtype()), storage, mask=~valid)
    return moved.view(array.type)


def _numbers(array: Array, storage: pa.DataType) -> NDArray[np.int64]:
    """Return the stored numbers, 0 for nulls; NumPy would make floats of an array with nulls."""
    viewed: Any = array.view(storage)
    plain: Any = pc.fill_null(viewed, 0)
    numbers: NDArray[np.int64] = plain.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _leaves(array: Any) -> Iterator[Array]:
    """Yield the values inside of lists, maps and structs."""
    kind = array.type
    if pa.types.is_struct(kind):
        for part in array.flatten():
            yield from _leaves(part)
    elif pa.types.is_map(kind):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif pa.types.is_nested(kind):
        yield from _leaves(array.flatten())
    else:
        yield array


def _refused(
    array: Array, calendar: Calendar, where: tuple[str, str], place: str
) -> UnsupportedColumnError:
    column, file = where
    is_date = pa.types.is_date32(array.type)
    what = "dates before 1582-10-15" if is_date else "timestamps before 1900"
    writer = "Hive's" if calendar.is_hive else "Spark's"
    zone = "" if is_date else f", in the time zone {calendar.zone[:100] or '(not stated)'}"
    return UnsupportedColumnError(
        f"column {column!r} of file {file} holds {what}{f' {place}' if place else ''} in {writer} "
        f"legacy calendar{zone}, which headrace cannot convert exactly; {_ADVICE}",
        column=column,
        shard=file,
    )
