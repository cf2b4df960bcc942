"""Open Parquet files as a dataset, with or without a stored index."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import NotADatasetError
from headrace.storage.parquet.build import build_index
from headrace.storage.parquet.dataset import ParquetDataset
from headrace.storage.parquet.enclosing_tables import refuse_parts_of_tables
from headrace.storage.parquet.index import ParquetIndex
from headrace.storage.parquet.layout import FoundFiles, find_files, layout_of, refuse_other_tables
from headrace.storage.source.source import Progress
from headrace.storage.source.unchanged import check_unchanged
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.outer_store import with_outer
from headrace.storage.store.store import Store


def open_parquet(
    url: str,
    *,
    options: StoreOptions | None = None,
    index: ParquetIndex | None = None,
    table_version: int | None = None,
    missing_as_null: bool = False,
    table_prefixes: tuple[str, ...] = (),
    progress: Progress | None = None,
    store: Store | None = None,
) -> ParquetDataset:
    """Open the Parquet files at a URL.

    It lists the files. Without an index it then reads the footer of every file; with one it
    compares the size and version of every file and reads nothing.

    Args:
        url: One file, a directory, a directory of partitions, or a Delta table.
        options: The options of the store.
        index: The result of `decode_index`; files added after it are left out.
        table_version: The version of a Delta table, or `None` for the current one; an index
            determines the version itself.
        missing_as_null: Whether files may lack columns, as `SourceOptions` has it; an index says
            so itself.
        table_prefixes: Where the log of a Delta table may name files, as `SourceOptions` has it.
        progress: Called with the number of footers read and of files.
        store: The store of the URL, if it is already open; the dataset owns it from now on.

    Raises:
        NotADatasetError: There are no Parquet files, or no such version of the table.
        ShardCorruptError: A file is damaged, or has changed since it was indexed.
        ObjectNotFoundError: A file of the index or of the Delta log is missing.
        UnsupportedColumnError: A column cannot be served, or files differ in it.
        ConfigurationError: The files or the table need features that are not supported, or packages
            that are not installed; it is a table of Iceberg, Hudi or Hive; or it is a part of a
            table.
        ManifestCorruptError: The log of a Delta table is damaged.
        StoreRefusedError: The store refuses.
        StoreUnavailableError: The store cannot be reached.
    """
    chosen = options or StoreOptions()
    found = find_files(store or open_store(url, options=chosen), url, options=chosen)
    found = replace(found, files=with_outer(found.files, table_prefixes, options=chosen))
    try:
        refuse_other_tables(url, found.entries)
        if index is None:
            refuse_parts_of_tables(_place_of(found), options=chosen)
            layout = layout_of(
                url,
                found,
                options=chosen,
                table_version=table_version,
                table_prefixes=table_prefixes,
            )
            index = build_index(
                found.files, layout, missing_as_null=missing_as_null, progress=progress
            )
        else:
            entries = (file.entry for file in index.files)
            check_unchanged(entries, found.entries, url=url, ask=found.files.entry)
        _check_not_empty(index, url)
        return ParquetDataset(found.files, index)
    except BaseException:
        found.files.close()
        raise


def _place_of(found: FoundFiles) -> str:
    """Return the URL of what was found, of the same commit where the store is of one."""
    url = found.files.url
    return f"{url.rstrip('/')}/{found.entries[0].name}" if found.is_file else url


def _check_not_empty(index: ParquetIndex, url: str) -> None:
    if not len(index.row_groups):
        count = len(index.files)
        what = "the Parquet file" if count == 1 else f"the {count} Parquet files"
        raise NotADatasetError(
            f"{what} at {url} {'has' if count == 1 else 'have'} no samples, but a dataset needs at "
            "least one: check the program that wrote there",
            url=url,
        )
