"""Find out what is at a URL: one file, a directory of files, partitions, or a Delta table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import ConfigurationError, NotADatasetError, ObjectNotFoundError
from headrace.storage.parquet.commit_logs import written_files
from headrace.storage.parquet.delta import DeltaVersion, read_delta
from headrace.storage.parquet.partitions import partition_columns
from headrace.storage.source.kinds import (
    DELTA_LOG_FOLDER,
    PARQUET_ENDINGS,
    is_parquet_name,
    table_format,
)
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import ObjectEntry, Store

_SPARK_READERS = {
    "Hudi table": '.format("hudi").load({})',
    "Iceberg table": '.format("iceberg").load({})',
    "table of Hive": ".parquet({})",
    "transactional table of Hive": '.table("the name of the table")',
}

_THREADS = 32


@dataclass(frozen=True, slots=True, eq=False)
class FoundFiles:
    """The result of listing a URL.

    Attributes:
        files: The store.
        entries: All files, including hidden ones and those of other kinds.
        is_file: Whether the URL names a single file.
    """

    files: Store
    entries: tuple[ObjectEntry, ...]
    is_file: bool


@dataclass(frozen=True, slots=True, eq=False)
class TableColumns:
    """The columns of a version of a table, as its metadata states them.

    Attributes:
        schema: The columns with the table's names.
        physical: The same columns, in plain types, with the files' names or with ids.
        version: The number of the version.
    """

    schema: pa.Schema
    physical: pa.Schema
    version: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The files of a dataset, and what is known about them without reading them.

    Attributes:
        entries: The files in the order of their samples.
        constants: Columns with a constant value per file, one row per file.
        deleted: Deleted rows, ascending, by name of the file.
        table: The columns of the table, if it is one.
    """

    entries: tuple[ObjectEntry, ...]
    constants: pa.RecordBatch
    deleted: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    table: TableColumns | None = None


def is_delta(entries: Iterable[ObjectEntry]) -> bool:
    """Return whether there is a Delta log among files."""
    return any(entry.name.startswith(f"{DELTA_LOG_FOLDER}/") for entry in entries)


def find_files(files: Store, url: str, *, options: StoreOptions) -> FoundFiles:
    """Return the files under a URL, or the file that it names in its folder.

    Args:
        files: The store of the URL; it is closed if another store replaces it, or if this raises.
        url: The URL as the caller wrote it.
        options: The options of the folder's store.

    Raises:
        NotADatasetError: There is no file.
    """
    looks_like_file = is_parquet_name(_split(url)[1])
    try:
        # In this order, because a file needs no right to list.
        found = _file_at(url, options=options) if looks_like_file else None
        entries = () if found else tuple(files.list_entries())
    except BaseException:
        files.close()
        raise
    if entries:
        return FoundFiles(files, entries, is_file=False)
    files.close()
    if found is None and not looks_like_file:
        found = _file_at(url, options=options)
    if found is None:
        raise NotADatasetError(f"there is no file at {url} or under it; check the URL", url=url)
    return found


def is_parquet_file(url: str, *, options: StoreOptions) -> bool:
    """Return whether a URL has the name of a Parquet file, and is one."""
    found = _file_at(url, options=options) if is_parquet_name(_split(url)[1]) else None
    if found is not None:
        found.files.close()
    return found is not None


def _file_at(url: str, *, options: StoreOptions) -> FoundFiles | None:
    """Return the file of a URL, in the store of the folder that it is in."""
    folder, name = _split(url)
    files = open_store(folder, options=options)
    entry = files.entry(name) if name else None
    if entry is None:
        files.close()
        return None
    return FoundFiles(files, (entry,), is_file=True)


def refuse_other_tables(url: str, entries: Sequence[ObjectEntry]) -> None:
    """Refuse tables whose current files only their metadata tells from replaced and deleted ones.

    A Delta table is accepted even if it also has such metadata, for other readers.

    Raises:
        ConfigurationError: There is a table of Iceberg, Hudi or Hive, or there are several tables.
    """
    for entry in () if is_delta(entries) else entries:
        found = table_format(entry.name)
        if found is not None:
            article = "an" if found.startswith("I") else "a"
            where = f"{entry.name[:500]}, so it is or contains {article} {found}"
            raise ConfigurationError(
                f"{url} contains {where}; headrace cannot distinguish its current files from "
                f"replaced and deleted ones in the same folders. {_advice(found, url)}",
                url=url,
            )


def _advice(kind: str, url: str) -> str:
    reader = _SPARK_READERS.get(kind)
    if reader is None:
        return "Open one of the tables in it by its own URL"
    return (
        f"Convert it with Spark: write_shards(spark.read{reader.format(repr(url))}, "
        '"s3://bucket/dataset")'
    )


def layout_of(
    url: str,
    found: FoundFiles,
    *,
    options: StoreOptions,
    table_version: int | None = None,
    table_prefixes: tuple[str, ...] = (),
) -> Layout:
    """Return which files under a URL belong to the dataset, in the order of their samples.

    Raises:
        NotADatasetError: No file does, or the named version of the Delta table does not exist.
        UnsupportedColumnError: The folders of partitions contradict one another.
        ObjectNotFoundError: A file that a log names is missing.
        ManifestCorruptError: A log is damaged.
        ConfigurationError: A Delta table needs a package that is not installed, or another feature.
    """
    if is_delta(found.entries):
        delta = read_delta(
            url, found, options=options, version=table_version, prefixes=table_prefixes
        )
        return _delta_layout(url, found, delta)
    if table_version is not None:
        raise NotADatasetError(
            f"{url} has no versions: it contains no {DELTA_LOG_FOLDER}, so it is not a Delta table",
            url=url,
        )
    # A file named by its URL is accepted whatever its name.
    chosen = [e for e in found.entries if found.is_file or is_parquet_name(e.name)]
    if not chosen:
        raise NotADatasetError(
            f"none of the {len(found.entries)} files under {url} has a name that ends with "
            f"{', '.join(PARQUET_ENDINGS)} and does not start with _ or .; "
            "check the URL",
            url=url,
        )
    if not found.is_file:
        chosen = written_files(found.files, found.entries, chosen)
    if not chosen:
        raise NotADatasetError(
            f"the logs at {url} count none of its files as written; check the program that wrote "
            "there",
            url=url,
        )
    return Layout(tuple(chosen), partition_columns([entry.name for entry in chosen]))


def _delta_layout(url: str, found_files: FoundFiles, delta: DeltaVersion) -> Layout:
    by_name = {entry.name: entry for entry in found_files.entries}
    rest = [name for name in delta.names if name not in by_name]  # elsewhere, or missing
    with ThreadPoolExecutor(_THREADS, "headrace-delta") as pool:
        outer = pool.map(found_files.files.entry, rest)
        by_name |= {entry.name: entry for entry in outer if entry is not None}
    chosen = []
    for name, stored_bytes in zip(delta.names, delta.stored_bytes, strict=True):
        found = by_name.get(name)
        if found is None:
            raise ObjectNotFoundError(
                f"file {name} of version {delta.version} of the Delta table {url} is missing; it "
                "was vacuumed or deleted, so restore it or give a later version",
                url=url,
                name=name,
            )
        if found.stored_bytes != stored_bytes:
            raise ObjectEntry(name, stored_bytes, found.version).changed(found, url=url)
        chosen.append(found)
    columns = TableColumns(delta.schema, delta.physical, delta.version)
    return Layout(tuple(chosen), delta.constants, delta.deleted, columns)


def _split(url: str) -> tuple[str, str]:
    folder, mark, name = url.rstrip("/").rpartition("/")
    if not mark:
        return ".", name
    if folder.endswith(":/"):
        return url, ""  # a bucket alone
    return folder or "/", name
