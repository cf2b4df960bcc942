"""Read and check a footer's row groups: rows, places in the file, sizes, nulls.

The raw bytes of a row group depend on the footer alone, so no library affects them or the order of
samples. They are the sum over its column chunks of the larger of two numbers: the size of the pages
before compression, and the number of values times their width (4 for strings, 1/8 for booleans).
Strings stored as a dictionary count as stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.errors import ConfigurationError, ShardCorruptError
from headrace.storage.parquet.footer import Footer, damage
from headrace.storage.store.store import ObjectEntry

MAX_ROW_GROUP_BYTES = 2**31 - 1
"""The most raw bytes: what 32-bit offsets of a block's strings and lists can address."""

_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}
_PAD_BYTES = 100  # writers before 2014 left out a dictionary page's header (PARQUET-816)

ROW_GROUP_DTYPE = np.dtype(
    [
        ("row_group", "<i4"),
        ("first_row", "<i8"),
        ("row_count", "<i8"),
        ("sample_count", "<i8"),
        ("offset", "<i8"),
        ("stored_bytes", "<i8"),
        ("raw_bytes", "<i8"),
    ]
)
"""One row group.

``first_row`` is its first row in the file, ``row_count`` the number of its rows and
``sample_count`` that of rows that are not deleted; ``offset`` is its first byte and
``stored_bytes`` the sum of its column chunks.
"""


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupTable:
    """The row groups of one file.

    Attributes:
        rows: ``(row_groups,)`` of `ROW_GROUP_DTYPE`, without empty row groups.
        row_group_count: The number of row groups in the file, including empty ones.
        null_free: The names of top-level columns without nulls according to the footer.
    """

    rows: NDArray[np.void]
    row_group_count: int
    null_free: frozenset[str]


def row_group_table(metadata: pq.FileMetaData, footer: Footer) -> RowGroupTable:
    """Return the row groups of a file.

    Raises:
        ShardCorruptError: They are outside the file or overlap, or counts contradict one another.
        ConfigurationError: One is too large to be read at once.
    """
    null_free = {column.path for column in _flat_columns(metadata)}
    rows, places = [], []
    first_row = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_rows == 0:
            continue  # writers differ in what they say about its columns
        chunks = list(chunk_ranges(group, footer))
        raw_bytes = sum(_raw_bytes(chunk) for chunk in _chunks(group))
        null_free -= {chunk.path_in_schema for chunk in _chunks(group) if _may_hold_nulls(chunk)}
        stored = sum(stop - start for start, stop in chunks)
        first = min((start for start, _ in chunks), default=0)
        _check_counts(group.num_rows, raw_bytes, index, footer.entry)
        count = group.num_rows
        rows.append((index, first_row, count, count, first, stored, raw_bytes))
        first_row += count
        places.extend(chunks)
    table = np.array(rows, ROW_GROUP_DTYPE)
    if first_row != metadata.num_rows:
        raise footer.damage(f"{metadata.num_rows} rows expected, {first_row} in the row groups")
    _check_disjoint(places, footer)
    return RowGroupTable(table, metadata.num_row_groups, frozenset(null_free))


def chunk_ranges(group: pq.RowGroupMetaData, footer: Footer) -> Iterator[tuple[int, int]]:
    """Yield the bytes ``[start, stop)`` of each column chunk.

    Raises:
        ShardCorruptError: A chunk is outside the data part of the file.
    """
    limit = footer.offset
    for chunk in _chunks(group):
        start = chunk.data_page_offset
        dictionary = chunk.dictionary_page_offset or 0  # some writers write 0 for none
        if 0 < dictionary < start:
            start = dictionary
        stop = start + chunk.total_compressed_size
        if not 4 <= start <= stop <= limit:  # noqa: PLR2004 - after the magic
            raise footer.damage(
                f"column {chunk.path_in_schema!r} is in bytes [{start}, {stop}), but the data of "
                f"the file is in [4, {limit})"
            )
        yield start, stop


def without_deleted(
    rows: NDArray[np.void], deleted: NDArray[np.int64], entry: ObjectEntry
) -> NDArray[np.void]:
    """Return the row groups of a file without deleted rows, leaving out empty ones.

    Args:
        rows: As `row_group_table` returns them.
        deleted: The deleted rows of the file, ascending.
        entry: The file.

    Raises:
        ShardCorruptError: A deleted row is not in the file.
    """
    if not len(deleted):
        return rows
    stop = int(rows["row_count"].sum())
    if int(deleted[0]) < 0 or int(deleted[-1]) >= stop:
        raise damage(entry, f"row {deleted[-1]} is deleted, but the file has {stop} rows", offset=0)
    left = rows.copy()
    ends = rows["first_row"] + rows["row_count"]
    counts = np.searchsorted(deleted, ends) - np.searchsorted(deleted, rows["first_row"])
    left["sample_count"] -= counts
    left["raw_bytes"] = rows["raw_bytes"] * left["sample_count"] // rows["row_count"]
    return left[left["sample_count"] > 0]


def large_dictionaries(group: pq.RowGroupMetaData) -> list[str]:
    """Return the columns of text that could be far larger than the footer says.

    A dictionary stores a value once, however many rows have it. These columns are read as
    dictionaries, and their size is computed before they are decoded.
    """
    return [
        chunk.path_in_schema
        for chunk in _chunks(group)
        if chunk.physical_type == "BYTE_ARRAY"
        and chunk.has_dictionary_page
        and chunk.num_values * chunk.total_uncompressed_size > MAX_ROW_GROUP_BYTES
    ]


def padded(stop: int, footer: Footer) -> int:
    """Return the end of a read that includes bytes that old writers left out of lengths."""
    return min(stop + _PAD_BYTES, footer.offset)


def _chunks(group: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    return (group.column(index) for index in range(group.num_columns))


def _flat_columns(metadata: pq.FileMetaData) -> Iterator[pq.ColumnSchema]:
    columns = (metadata.schema.column(index) for index in range(metadata.num_columns))
    return (c for c in columns if c.max_repetition_level == 0 and c.max_definition_level <= 1)


def _raw_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    if chunk.total_uncompressed_size < 0 or chunk.num_values < 0:
        return MAX_ROW_GROUP_BYTES + 1  # refused as too large
    width = _WIDTHS.get(chunk.physical_type, 0)
    return int(max(chunk.total_uncompressed_size, width * chunk.num_values, chunk.num_values // 8))


def _may_hold_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    stated: Any = chunk.statistics  # the stubs lack has_null_count
    return stated is None or not stated.has_null_count or stated.null_count != 0


def _check_counts(rows: int, raw_bytes: int, index: int, entry: ObjectEntry) -> None:
    if rows < 0:
        raise damage(entry, f"row group {index} has {rows} rows", offset=0)
    if raw_bytes > MAX_ROW_GROUP_BYTES or rows > MAX_ROW_GROUP_BYTES:
        raise ConfigurationError(
            f"row group {index} of file {entry.name} has {rows} rows of {raw_bytes} bytes; a row "
            f"group is read as a whole and may have at most {MAX_ROW_GROUP_BYTES}; write the file "
            "again with smaller row groups",
            shard=entry.name,
        )


def _check_disjoint(places: list[tuple[int, int]], footer: Footer) -> None:
    """Refuse column chunks that overlap, since a small file could then expand to any size."""
    ordered = np.array(sorted(places), np.int64).reshape(-1, 2)
    overlaps = np.flatnonzero(ordered[1:, 0] < ordered[:-1, 1])
    if len(overlaps):
        raise _overlap(int(ordered[overlaps[0] + 1, 0]), footer)


def _overlap(offset: int, footer: Footer) -> ShardCorruptError:
    return damage(footer.entry, "two column chunks share this byte", offset=offset)
