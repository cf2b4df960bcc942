"""The `unity` source for the registry of sources."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import NotADatasetError, ObjectNotFoundError
from headrace.storage.parquet.build import build_index
from headrace.storage.parquet.index import ParquetIndex
from headrace.storage.parquet.index_codec import decode_index, encode_index
from headrace.storage.parquet.layout import find_files, layout_of
from headrace.storage.parquet.table_dataset import TableDataset, table_fingerprint, version_in
from headrace.storage.source.source import Index, Place, Progress, SourceOptions
from headrace.storage.source.unchanged import check_unchanged
from headrace.storage.store.lease import Lease
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.outer_store import with_outer
from headrace.storage.store.retry import call_with_retries
from headrace.storage.store.store import Store
from headrace.storage.unity.table import (
    SCHEME,
    UnityName,
    UnityTable,
    UnityVendor,
    find_table,
    unity_name,
)

MARK = f"table of {SCHEME}://"
_KEEP = (
    "a run needs the files of its version for as long as it lasts: set "
    "delta.deletedFileRetentionDuration and delta.logRetentionDuration of the table to more than "
    "that"
)


def detect(place: Place) -> bool:
    """Return whether the URL is a name of a table; nobody is asked."""
    return place.url.startswith(f"{SCHEME}://")


def open_at(place: Place, options: SourceOptions, *, fingerprint: str | None) -> TableDataset:
    """Ask the catalog, and open the table at its location."""
    name = _name(place, options)
    if fingerprint is not None:
        name = replace(name, version=_version(fingerprint, name))
    table, opened = _found(name, place.options, options)
    store, reach = opened
    try:
        index = _index(table, store, reach, options, progress=None)
        dataset = _dataset(table, store, index)
    except BaseException:
        store.close()
        raise
    if fingerprint is not None and dataset.fingerprint != fingerprint:
        dataset.close()
        raise NotADatasetError(
            f"version {name.version} of {name.url} has the fingerprint {dataset.fingerprint}, "
            f"{fingerprint} expected: it is another table of this name, or was restored",
            url=name.url,
            fingerprint=fingerprint,
        )
    return dataset


def make_index(place: Place, options: SourceOptions, *, progress: Progress | None) -> Index:
    """Read the footers of a table's files."""
    name = _name(place, options)
    table, (store, reach) = _found(name, place.options, options)
    try:
        index = _index(table, store, reach, options, progress=progress)
    finally:
        store.close()
    count = int(index.row_groups["sample_count"].sum())
    return Index(name.url, table_fingerprint(index, table.identity), count, encode_index(index))


def open_index(content: bytes, place: Place, options: SourceOptions, *, where: str) -> TableDataset:
    """Open a table by its index, if its files have not changed."""
    index = decode_index(content, place=where)
    table, (store, _) = _found(_name(place, options), place.options, options)
    try:
        entries = [file.entry for file in index.files]
        listed = store.list_entries()
        check_unchanged(entries, listed, url=table.name.url, ask=store.entry)
        return _dataset(table, store, index)
    except BaseException:
        store.close()
        raise


def _name(place: Place, options: SourceOptions) -> UnityName:
    name = unity_name(place.url)
    return replace(name, version=options.table_version) if name.version is None else name


def _version(fingerprint: str, name: UnityName) -> int:
    version = version_in(fingerprint, url=name.url)
    if version >> 63:
        raise NotADatasetError(f"{name.url} has no version of {fingerprint}", url=name.url)
    return version


def _found(
    name: UnityName, options: StoreOptions, source: SourceOptions
) -> tuple[UnityTable, tuple[Store, StoreOptions]]:
    """Ask the catalog for a table, and open the store of its location."""
    table = call_with_retries(lambda: find_table(name), options.retry)
    is_s3 = table.location.startswith(("s3://", "s3a://", "s3n://"))
    reach = options
    if is_s3 and not options.has_credentials:
        reach = replace(options, lease=Lease(UnityVendor(table)))
    own = open_store(table.location, options=reach)
    store = with_outer(own, source.table_prefixes, options=reach)
    return table, (store, reach)


def _index(
    table: UnityTable,
    store: Store,
    reach: StoreOptions,
    options: SourceOptions,
    *,
    progress: Progress | None,
) -> ParquetIndex:
    name, url = table.name, table.location
    found = find_files(store, url, options=reach)
    try:
        layout = layout_of(
            url,
            found,
            options=reach,
            table_version=name.version,
            table_prefixes=options.table_prefixes,
        )
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(f"{error.message}; {_KEEP}", **error.metadata) from error
    except NotADatasetError as error:
        raise NotADatasetError(f"{name.url}: {error.message}", **error.metadata) from error
    index = build_index(
        found.files, layout, missing_as_null=options.missing_as_null, progress=progress
    )
    if not len(index.row_groups):
        raise NotADatasetError(
            f"{name.url} has no rows, but a dataset needs at least one sample", url=name.url
        )
    return index


def _dataset(table: UnityTable, store: Store, index: ParquetIndex) -> TableDataset:
    version = index.table_version

    def gone() -> str:
        return f"version {version} of {table.name.url} was vacuumed meanwhile; {_KEEP}"

    return TableDataset(store, index, url=table.name.url, identity=table.identity, gone=gone)
