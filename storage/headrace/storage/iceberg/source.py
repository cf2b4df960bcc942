"""The `iceberg` source for the registry of sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from headrace.errors import HeadraceError, NotADatasetError, StoreRefusedError
from headrace.storage.iceberg.catalog import FoundTable, TableVendor, find_table
from headrace.storage.iceberg.locations import Files
from headrace.storage.iceberg.plan import planned
from headrace.storage.iceberg.snapshots import KEEP, gone, schemas_of, snapshot_of
from headrace.storage.iceberg.table_name import SCHEME, TableName, table_name
from headrace.storage.parquet.build import build_index
from headrace.storage.parquet.index import ParquetIndex
from headrace.storage.parquet.index_codec import decode_index, encode_index
from headrace.storage.parquet.table_dataset import TableDataset, table_fingerprint
from headrace.storage.source.source import Index, Place, Progress, SourceOptions
from headrace.storage.store.lease import Lease
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.outer_store import normal, with_outer
from headrace.storage.store.retry import call_with_retries

MARK = f"table of {SCHEME}://"


def detect(place: Place) -> bool:
    """Return whether the URL is a name of a table; nobody is asked."""
    return place.url.startswith(f"{SCHEME}://")


def open_at(place: Place, options: SourceOptions, *, fingerprint: str | None) -> TableDataset:
    """Ask the catalog, plan the snapshot and read the footers of its files."""
    name = _name(place, options)
    with _opened(name, place.options, options) as (found, files):
        index = _index(found, files, name, fingerprint=fingerprint, progress=None)
        return _dataset(found, files, name, index)


def make_index(place: Place, options: SourceOptions, *, progress: Progress | None) -> Index:
    """Read the footers of a snapshot's files."""
    name = _name(place, options)
    with _opened(name, place.options, options) as (found, files):
        index = _index(found, files, name, fingerprint=None, progress=progress)
        fingerprint = table_fingerprint(index, str(found.table.metadata.table_uuid))
        with _dataset(found, files, name, index) as dataset:
            return Index(dataset.url, fingerprint, dataset.sample_count, encode_index(index))


def open_index(content: bytes, place: Place, options: SourceOptions, *, where: str) -> TableDataset:
    """Open a snapshot by its index: its files never change, and each read compares versions."""
    name = _name(place, options)
    index = decode_index(content, place=where)
    with _opened(name, place.options, options) as (found, files):
        dataset = _dataset(found, files, name, index)
        snapshot_of(found.table.metadata, name, dataset.fingerprint)
        return dataset


def _name(place: Place, options: SourceOptions) -> TableName:
    name = table_name(place.url)
    if options.table_version is not None and name.reference is None:
        return replace(name, reference=str(options.table_version))
    return name


@contextmanager
def _opened(
    name: TableName, options: StoreOptions, source: SourceOptions
) -> Iterator[tuple[FoundTable, Files]]:
    """Ask a catalog for a table, and open the store of its location; closed if the body raises."""
    found = call_with_retries(lambda: find_table(name), options.retry)
    location = normal(found.table.metadata.location)
    reach = store_options(found, name, options)
    own = open_store(location, options=reach)
    store = with_outer(own, source.table_prefixes, options=reach)
    try:
        yield found, Files(store, location, name.url, source.table_prefixes)
    except StoreRefusedError as error:
        store.close()
        if found.grant is not None:
            raise
        raise StoreRefusedError(
            f"{error.message}; {name.title} gives no credentials for {name.table}, so the usual "
            "ones of the store were used",
            **error.metadata,
        ) from error
    except BaseException:
        store.close()
        raise


def store_options(found: FoundTable, name: TableName, options: StoreOptions) -> StoreOptions:
    """Return how to reach the files of a table: as the operator says, and else as the catalog does.

    Args:
        found: The table.
        name: Its name.
        options: The operator's options.
    """

    def stated(*names: str) -> str | None:
        return next((found.properties[name] for name in names if name in found.properties), None)

    filled = replace(
        options,
        endpoint=options.endpoint or stated("s3.endpoint"),
        region=options.region or stated("s3.region", "client.region"),
    )
    if options.has_credentials:
        return filled
    if found.grant is not None:
        vendor = TableVendor(name, str(found.table.metadata.table_uuid))
        return replace(filled, lease=Lease(vendor, first=found.grant))
    return replace(
        filled,
        access_key=stated("s3.access-key-id", "client.access-key-id"),
        secret_key=stated("s3.secret-access-key", "client.secret-access-key"),
        session_token=stated("s3.session-token", "client.session-token"),
    )


def _index(
    found: FoundTable,
    files: Files,
    name: TableName,
    *,
    fingerprint: str | None,
    progress: Progress | None,
) -> ParquetIndex:
    """Plan a snapshot and read its footers, with the schema that a fingerprint was made with."""
    metadata = found.table.metadata
    snapshot = snapshot_of(metadata, name, fingerprint)
    seen = []
    for schema in schemas_of(metadata, snapshot, name):
        layout = planned(files, metadata, schema, snapshot=snapshot.snapshot_id)
        index = build_index(files.store, layout, progress=progress)
        seen.append(table_fingerprint(index, str(metadata.table_uuid)))
        if fingerprint in {None, seen[-1]}:
            return index
    raise NotADatasetError(
        f"snapshot {snapshot.snapshot_id} of {name.url} has the fingerprint {seen[0]}, "
        f"{fingerprint} expected: it is another table of this name, or its files were replaced",
        url=name.url,
        fingerprint=fingerprint,
    )


def _dataset(found: FoundTable, files: Files, name: TableName, index: ParquetIndex) -> TableDataset:
    snapshot = index.table_version or 0
    if not len(index.row_groups):
        raise NotADatasetError(
            f"snapshot {snapshot} of {name.url} has no rows, but a dataset needs at least one "
            "sample",
            url=name.url,
        )

    def left() -> str:
        """Say what the catalog has now, or what it had if it cannot be asked."""
        try:
            metadata = find_table(name).table.metadata
        except HeadraceError as error:
            return f"{error.message}; {KEEP}"
        if metadata.snapshot_by_id(snapshot) is None:
            return gone(metadata, name, snapshot)
        return f"though snapshot {snapshot} is still in the table's metadata; restore the file"

    identity = str(found.table.metadata.table_uuid)
    return TableDataset(files.store, index, url=files.url, identity=identity, gone=left)
