"""Store beside a dataset at a URL what packing its documents needs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import ManifestCorruptError, ObjectNotFoundError
from headrace.storage.dataset.pointer import Pointer
from headrace.storage.dataset.read_manifest import read_any_pointer, read_manifest
from headrace.storage.open.sources import open_dataset
from headrace.storage.packing.build import CountRows, Progress, store_packing
from headrace.storage.packing.lengths import document_column
from headrace.storage.packing.pointer import PackingPointer, RowOptions
from headrace.storage.packing.stored import read_packing
from headrace.storage.source.source import SourceOptions
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import Store, open_store


def index_packing(
    url: str,
    options: RowOptions,
    *,
    count_rows: CountRows,
    columns: Sequence[str] = (),
    refuse_longer: bool = False,
    store_options: StoreOptions | None = None,
    source_options: SourceOptions | None = None,
    progress: Progress = lambda _done, _total: None,
) -> PackingPointer:
    """Store what packing the documents of the current version needs, for one length of rows.

    Args:
        url: Of the dataset.
        options: How documents become rows.
        count_rows: How many rows the documents of a group make, such as
            `headrace.order.packing.group_row_count`.
        columns: The column of documents, and others whose rows are as long, to be packed alike;
            none for the only one that holds lists of numbers.
        refuse_longer: Whether a document that is longer than a row is an error.
        store_options: How to reach the store.
        source_options: Which source to use, and what each is allowed.
        progress: Called with blocks that were read, or groups that were counted, and all of them.

    Returns:
        What is stored now.

    Raises:
        HeadraceError: As `open_dataset`.
        ColumnNotFoundError: There is no such column.
        BadArgumentError: A column holds no lists of numbers, a document is too long, or the rows of
            two columns are not as long.
        CommitConflictError: Another writer came between.
    """
    store = open_store(url, options=store_options or StoreOptions())
    try:
        with open_dataset(url, options=store_options, source_options=source_options) as dataset:
            wanted: Sequence[str | None] = columns or [None]
            names = [document_column(dataset.schema, name) for name in wanted]
            return store_packing(
                store,
                dataset,
                options,
                columns=names,
                count_rows=count_rows,
                earlier=_earlier(store, dataset.fingerprint),
                refuse_longer=refuse_longer,
                progress=progress,
            )
    finally:
        store.close()


def _earlier(store: Store, fingerprint: str) -> PackingPointer | None:
    """Return what is stored of a version that this one continues, the latest such."""
    try:
        pointer, _ = read_any_pointer(store)
    except (ObjectNotFoundError, ManifestCorruptError):
        return None
    if not isinstance(pointer, Pointer) or pointer.current.fingerprint != fingerprint:
        return None
    names = read_manifest(store, pointer.current).names
    for version in reversed(pointer.versions[:-1]):
        found = read_packing(store, version.fingerprint)
        if found is not None:
            before = read_manifest(store, version).names
            # Shards are never written twice, so equal names are equal content.
            if names[: len(before)].equals(before):
                return found
    return None
