"""Read one row group with a few ranged reads and Arrow's decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.errors import ShardCorruptError
from headrace.storage.parquet.calendar import in_proleptic_calendar
from headrace.storage.parquet.footer import Footer
from headrace.storage.parquet.row_groups import chunk_ranges, large_dictionaries, padded
from headrace.storage.parquet.segments import SegmentFile, coalesced
from headrace.storage.store.store import Store


def read_row_group(
    files: Store,
    footer: Footer,
    metadata: pq.FileMetaData,
    *,
    row_group: int,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return a row group as Arrow reads it, verifying checksums of pages if there are any.

    Args:
        files: The store of the file.
        footer: The footer of the file.
        metadata: The footer parsed by Arrow.
        row_group: The ordinal of the row group in the file.
        columns: Names of the columns to read, the only ones that are fetched; None for all. If a
            name contains a dot, all are read, because Arrow takes it for a field of a struct.

    Raises:
        ShardCorruptError: It is damaged; names the file, the row group and the byte.
        UnsupportedColumnError: Old dates in Spark's legacy calendar cannot be converted.
        ObjectNotFoundError: The file is missing.
        StoreUnavailableError: The store cannot be reached.
    """
    group = metadata.row_group(row_group)
    if columns is not None and any("." in name for name in columns):
        columns = None
    ranges = list(chunk_ranges(group, footer))
    if columns is not None:
        paths = [group.column(index).path_in_schema for index in range(len(ranges))]
        ranges = [
            each for each, path in zip(ranges, paths, strict=True) if path.split(".")[0] in columns
        ]
    segments = [
        (start, files.read_entry(footer.entry, offset=start, length=padded(stop, footer) - start))
        for start, stop in coalesced(ranges)
    ]
    reader = _Reader(footer, metadata, segments)
    try:
        table = reader.read(row_group, columns)
    except _FAILURES as error:
        raise _damaged_column(reader, row_group, columns, error) from error
    if table.num_rows != group.num_rows:
        raise block_damage(
            footer,
            row_group,
            f"{table.num_rows} rows found, {group.num_rows} expected",
            offset=segments[0][0] if segments else 0,
        )
    return in_proleptic_calendar(table, metadata, file=footer.entry.name)


def without_rows(batch: pa.RecordBatch, deleted: NDArray[np.int64]) -> pa.RecordBatch:
    """Return the batch without deleted rows.

    Args:
        batch: All rows.
        deleted: The ordinals of rows to leave out.
    """
    if not len(deleted):
        return batch
    kept = np.ones(batch.num_rows, np.bool_)
    kept[deleted] = False
    return batch.filter(pa.array(kept))


def block_damage(footer: Footer, row_group: int, found: str, *, offset: int) -> ShardCorruptError:
    """Return the error for an invalid row group."""
    return ShardCorruptError(
        f"file {footer.entry.name}, row group {row_group}, at byte {offset}: {found}; restore the "
        "file or write it again",
        shard=footer.entry.name,
        row_group=row_group,
        offset=offset,
    )


_FAILURES = (pa.ArrowException, OSError, ValueError, MemoryError)


class _Reader:
    """Open Arrow's reader over the fetched parts of a file."""

    def __init__(
        self, footer: Footer, metadata: pq.FileMetaData, segments: list[tuple[int, bytes]]
    ) -> None:
        self.footer = footer
        self.metadata = metadata
        self._segments = segments

    def read(self, row_group: int, columns: Sequence[str] | None = None) -> pa.Table:
        # Any: Arrow needs fewer methods of a file than its stubs require.
        parts: Any = SegmentFile(self.footer.entry.stored_bytes, self._segments)
        source = pa.PythonFile(parts, "r")
        with pq.ParquetFile(
            source,
            metadata=self.metadata,
            read_dictionary=large_dictionaries(self.metadata.row_group(row_group)),
            # The parts are already in memory.
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
        ) as file:
            # The caller has its own threads, one per block.
            return file.read_row_group(
                row_group, columns=None if columns is None else list(columns), use_threads=False
            )


def _damaged_column(
    reader: _Reader, row_group: int, columns: Sequence[str] | None, error: Exception
) -> ShardCorruptError:
    """Find the column that cannot be read, trying one after the other."""
    group = reader.metadata.row_group(row_group)
    starts = [start for start, _ in chunk_ranges(group, reader.footer)]
    for index, start in enumerate(starts):
        path = group.column(index).path_in_schema
        if columns is not None and path.split(".")[0] not in columns:
            continue
        try:
            reader.read(row_group, [path])
        except _FAILURES as found:
            text = f"column {path!r} cannot be read: {found}"
            return block_damage(reader.footer, row_group, text, offset=start)
    return block_damage(reader.footer, row_group, str(error), offset=min(starts, default=0))
