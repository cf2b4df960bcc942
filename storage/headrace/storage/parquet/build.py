"""Make an index from the footers of all files, reading several at once."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.errors import UnsupportedColumnError
from headrace.storage.parquet.field_ids import file_names, is_by_id
from headrace.storage.parquet.footer import read_footer
from headrace.storage.parquet.index import IndexedFile, ParquetIndex, fingerprint_of
from headrace.storage.parquet.layout import Layout, TableColumns
from headrace.storage.parquet.plain_types import plain_type, wider_type
from headrace.storage.parquet.row_groups import (
    ROW_GROUP_DTYPE,
    row_group_table,
    without_deleted,
)
from headrace.storage.parquet.unify import (
    FileSchema,
    hugging_face_classes,
    unified_schema,
    with_columns,
    with_common_classes,
)
from headrace.storage.shard.types import schema_texts
from headrace.storage.source.source import Progress
from headrace.storage.store.store import ObjectEntry, Store

if TYPE_CHECKING:
    Field = pa.Field[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

FOOTER_THREADS = 32
"""Arbitrary: 1,600 files per second at 20 ms per read."""

_AT_ONCE = 1024  # futures of 1 KiB, and threads wait for the last of as many (arbitrary)

LARGE_ROW_GROUP_BYTES = 16 << 20
"""Eight of the runs into which the order cuts shards; a larger row group is a run of its own."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _OpenedFile:
    """The facts kept from a footer; files with the same columns share ``columns``."""

    entry: ObjectEntry
    footer_bytes: int
    footer_digest: bytes
    columns: FileSchema
    rows: np.ndarray[Any, np.dtype[np.void]]
    row_group_count: int


def build_index(
    files: Store,
    layout: Layout,
    *,
    missing_as_null: bool = False,
    progress: Progress | None = None,
) -> ParquetIndex:
    """Read the footers of a dataset's files.

    Args:
        files: The store.
        layout: The files.
        missing_as_null: Whether files may lack columns, which are then null for their samples.
        progress: Called as footers arrive.

    Raises:
        ShardCorruptError: A file is damaged, or changes while it is read.
        UnsupportedColumnError: A column cannot be served, or files differ in it.
        ConfigurationError: A file is encrypted or has row groups that are too large.
    """
    opened = []
    for file in _read_footers(files, layout):
        opened.append(file)
        if progress is not None:
            progress(len(opened), len(layout.entries))
    schema, physical = _schemas(layout, opened, missing_as_null=missing_as_null)
    tables = [_kept(layout, file) for file in opened]
    row_groups = np.concatenate([np.empty(0, ROW_GROUP_DTYPE), *tables])
    indexed = tuple(
        IndexedFile(
            file.entry, file.footer_bytes, file.footer_digest, file.row_group_count, len(rows)
        )
        for file, rows in zip(opened, tables, strict=True)
    )
    deleted = {
        ordinal: layout.deleted[entry.name]
        for ordinal, entry in enumerate(layout.entries)
        if entry.name in layout.deleted
    }
    _advise(files.url, row_groups)
    return ParquetIndex(
        schema=schema,
        physical=physical,
        table_version=None if layout.table is None else layout.table.version,
        files=indexed,
        constants=layout.constants,
        deleted=deleted,
        row_groups=row_groups,
        fingerprint=fingerprint_of(
            schema=schema,
            physical=physical,
            files=indexed,
            constants=layout.constants,
            deleted=deleted,
            row_groups=row_groups,
        ),
    )


def _read_footers(files: Store, layout: Layout) -> Iterator[_OpenedFile]:
    """Yield the facts of each footer, in order; the pool ends with the generator."""
    entries = layout.entries
    physical = pa.schema([]) if layout.table is None else layout.table.physical
    known: dict[tuple[object, ...], FileSchema] = {}

    def read(entry: ObjectEntry) -> _OpenedFile:
        footer = read_footer(files, entry)
        with footer.file() as file:
            table = row_group_table(file.metadata, footer)
            stated = file.schema_arrow
        schema, classes = stated.remove_metadata(), hugging_face_classes(stated)
        key = (schema.serialize().to_pybytes(), table.null_free, tuple(classes.items()))
        columns = known.get(key)
        if columns is None:
            columns = FileSchema(entry.name, schema, table.null_free, classes)
            if is_by_id(physical):
                columns = file_names(schema, physical, file=entry.name).of_file(columns)
            columns = known.setdefault(key, columns)
        length, digest = len(footer.content), footer.digest
        return _OpenedFile(entry, length, digest, columns, table.rows, table.row_group_count)

    pool = ThreadPoolExecutor(min(FOOTER_THREADS, max(1, len(entries))), "headrace-footer")
    try:
        for first in range(0, len(entries), _AT_ONCE):
            if first:
                # pyarrow's metadata and their schema refer to each other, with 37 KiB for 20
                # columns, and what threads held during a collection is old to the next ones.
                gc.collect()
            yield from pool.map(read, entries[first : first + _AT_ONCE])
    finally:
        pool.shutdown(cancel_futures=True)


def _kept(layout: Layout, file: _OpenedFile) -> np.ndarray[Any, np.dtype[np.void]]:
    gone = layout.deleted.get(file.entry.name, np.empty(0, np.int64))
    return without_deleted(file.rows, gone, file.entry)


def _schemas(
    layout: Layout, opened: Sequence[_OpenedFile], *, missing_as_null: bool
) -> tuple[pa.Schema, pa.Schema]:
    """Return the served columns, and the same columns under their names in the files."""
    if layout.table is not None:
        return _table_schemas(layout, layout.table, opened)
    found = unified_schema(_distinct(opened), missing_as_null=missing_as_null)
    unified = with_columns(found, layout.constants.schema)
    schema_texts(unified)  # raises for columns that cannot be served
    return with_common_classes(unified, _distinct(opened)), unified


def _table_schemas(
    layout: Layout, table: TableColumns, opened: Sequence[_OpenedFile]
) -> tuple[pa.Schema, pa.Schema]:
    served, found = [], _distinct(opened)
    constants = layout.constants
    for field, physical in zip(table.schema, table.physical, strict=True):
        plain = pa.field(field.name, plain_type(field.type), field.nullable)
        in_files = any(physical.name in columns.schema.names for columns in found)
        if field.name in constants.schema.names and not (in_files and is_by_id(table.physical)):
            nulls = constants.column(field.name).null_count > 0
            served.append(plain.with_nullable(nulls))
            continue
        for columns in found:
            _check_castable(columns, physical)
        null_free = all(physical.name in columns.null_free for columns in found)
        served.append(plain.with_nullable(field.nullable and not null_free))
    schema = pa.schema(served)
    schema_texts(schema)  # raises for columns that cannot be served
    return schema, table.physical


def _distinct(opened: Sequence[_OpenedFile]) -> list[FileSchema]:
    """Return the columns of the files, in order of their first occurrence."""
    return list({id(file.columns): file.columns for file in opened}.values())


def _check_castable(file: FileSchema, wanted: Field) -> None:
    position = file.schema.get_field_index(wanted.name)
    if position < 0:
        return  # added to the table later, or dropped: its values are null
    found = plain_type(file.schema.field(position).type)
    if wider_type(found, wanted.type) == wanted.type:
        return
    if pa.types.is_nested(found) and pa.types.is_nested(wanted.type):
        return  # fields may be missing inside; values that do not fit are found when they are read
    try:
        pa.array([], found).cast(wanted.type)
    except pa.ArrowException as error:
        raise UnsupportedColumnError(
            f"column {wanted.name!r} is {found} in file {file.file} but {wanted.type} in the "
            "table; write the file again",
            column=wanted.name,
            shard=file.file,
        ) from error


def _advise(url: str, row_groups: np.ndarray[Any, np.dtype[np.void]]) -> None:
    if len(row_groups) and int(row_groups["raw_bytes"].max()) > LARGE_ROW_GROUP_BYTES:
        _LOG.warning(
            "%s has row groups of up to %d MiB, and reading any sample reads its whole row group; "
            "for shuffled reading, write row groups of at most %d MiB",
            url,
            int(row_groups["raw_bytes"].max()) >> 20,
            LARGE_ROW_GROUP_BYTES >> 20,
        )
