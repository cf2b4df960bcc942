"""Find the files of a snapshot, and what is known about them without reading them."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    ManifestCorruptError,
    ObjectNotFoundError,
    StoreRefusedError,
    UnsupportedColumnError,
)
from headrace.storage.iceberg.columns import table_columns
from headrace.storage.iceberg.deletes import deleted_rows
from headrace.storage.iceberg.locations import Files, file_io
from headrace.storage.parquet.layout import Layout, TableColumns
from headrace.storage.store.store import ObjectEntry

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.metadata import TableMetadata

_THREADS = 32
_FEW = 64  # files that are asked for one by one rather than listed (arbitrary)


def planned(files: Files, metadata: TableMetadata, schema: Schema, *, snapshot: int) -> Layout:
    """Return the files of a snapshot in the order of their paths, with what is deleted in them.

    Raises:
        ConfigurationError: The table has equality deletes, data files of other kinds than Parquet,
            or files elsewhere.
        UnsupportedColumnError: A column cannot be served.
        ObjectNotFoundError: A file is missing.
        ManifestCorruptError: The metadata is damaged.
    """
    columns = table_columns(schema, metadata.name_mapping(), snapshot=snapshot)
    tasks = sorted(_tasks(files, metadata, snapshot), key=lambda task: str(task.file.file_path))
    for task in tasks:
        _check_kind(task.file, files.url)
    names = [files.name(task.file.file_path) for task in tasks]
    deletes = {name: task.delete_files for name, task in zip(names, tasks, strict=True)}
    return Layout(
        _entries(files, [task.file for task in tasks], names, snapshot),
        _constants([task.file for task in tasks], metadata, schema, columns),
        deleted_rows(files, deletes, url=files.url),
        columns,
    )


def _tasks(files: Files, metadata: TableMetadata, snapshot: int) -> Iterable[FileScanTask]:
    from pyiceberg.catalog.noop import NoopCatalog  # noqa: PLC0415 - an extra
    from pyiceberg.table import Table  # noqa: PLC0415 - an extra

    table = Table(
        identifier=("table",),
        metadata=metadata,
        metadata_location=files.location,
        io=file_io(files),
        catalog=NoopCatalog("headrace"),
    )
    try:
        return list(table.scan(snapshot_id=snapshot).plan_files())
    except HeadraceError:
        raise
    except Exception as error:
        if "equality deletes" in str(error):
            raise ConfigurationError(
                f"snapshot {snapshot} of {files.url} has equality deletes, which headrace does "
                "not apply; rewrite the table first (CALL system.rewrite_data_files with "
                "'delete-file-threshold', '1'), or have its writer merge on write",
                url=files.url,
            ) from error
        raise ManifestCorruptError(
            f"the manifests of snapshot {snapshot} of {files.url} cannot be read: "
            f"{type(error).__name__}: {str(error)[:300]}; repair the table, or give another "
            "snapshot",
            place=files.url,
        ) from error


def _check_kind(file: DataFile, url: str) -> None:
    kind = str(file.file_format).rpartition(".")[2]
    if kind != "PARQUET":
        raise ConfigurationError(
            f"{url} has the data file {file.file_path}, a file of {kind}, and headrace reads "
            "Parquet; rewrite the table with write.format.default=parquet",
            url=url,
        )


def _entries(
    files: Files, stated: Sequence[DataFile], names: Sequence[str], snapshot: int
) -> tuple[ObjectEntry, ...]:
    known = _known(files, names)
    chosen = []
    for file, name in zip(stated, names, strict=True):
        entry = known.get(name)
        if entry is None:
            raise ObjectNotFoundError(
                f"file {name} of snapshot {snapshot} of {files.url} is missing in "
                f"{files.store.url}; restore it, or give another snapshot",
                url=files.url,
                name=name,
            )
        if entry.stored_bytes != file.file_size_in_bytes:
            wanted = ObjectEntry(name, file.file_size_in_bytes, entry.version)
            raise wanted.changed(entry, url=files.url)
        chosen.append(entry)
    return tuple(chosen)


def _known(files: Files, names: Sequence[str]) -> Mapping[str, ObjectEntry]:
    """Return the files by name, listed if they are many and the store allows it."""
    known: dict[str, ObjectEntry] = {}
    if len(names) > _FEW:
        folder = os.path.commonpath(names)  # of names with /, on every system that headrace runs on
        with suppress(StoreRefusedError):  # credentials of a table need not allow it
            found = files.store.list_entries(f"{folder}/" if folder else "")
            known = {entry.name: entry for entry in found}
    rest = [name for name in names if name not in known]
    with ThreadPoolExecutor(_THREADS, "headrace-iceberg") as pool:
        entries = pool.map(files.store.entry, rest)
        return known | {entry.name: entry for entry in entries if entry is not None}


def _constants(
    files: Sequence[DataFile], metadata: TableMetadata, schema: Schema, columns: TableColumns
) -> pa.RecordBatch:
    """Return the values of columns in files that lack them: of partitions, or of defaults."""
    from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415 - an extra

    specs = {
        spec.spec_id: {
            field.source_id: place
            for place, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform)
        }
        for spec in metadata.partition_specs
    }
    known = {source for places in specs.values() for source in places}
    made: dict[str, pa.Array[Any]] = {}
    for field in schema.fields:
        _refuse_inner_defaults(field.name, field.field_type)
        default = getattr(field, "initial_default", None)
        if field.field_id not in known and default is None:
            continue
        values = []
        for file in files:
            place = specs[file.spec_id].get(field.field_id)
            values.append(_plain(default if place is None else file.partition[place]))
        made[field.name] = pa.array(values, columns.physical.field(field.name).type)
    return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))


def _refuse_inner_defaults(column: str, kind: Any) -> None:
    for field in getattr(kind, "fields", ()):
        if getattr(field, "initial_default", None) is not None:
            raise UnsupportedColumnError(
                f"column {column!r} has the field {field.name!r} with an initial default, which "
                "headrace applies to whole columns alone; rewrite the table's files",
                column=column,
            )
        _refuse_inner_defaults(column, field.field_type)
    for part in ("element_type", "key_type", "value_type"):
        if (inner := getattr(kind, part, None)) is not None:
            _refuse_inner_defaults(column, inner)


def _plain(value: object) -> object:
    return value.bytes if isinstance(value, UUID) else value
