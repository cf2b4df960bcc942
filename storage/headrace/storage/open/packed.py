"""Store the tables that packing needs beside a dataset at a URL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np

from headrace.errors import BadArgumentError, ManifestCorruptError, ObjectNotFoundError
from headrace.storage.dataset.manifest import Manifest
from headrace.storage.dataset.pointer import Pointer
from headrace.storage.dataset.read_manifest import read_any_pointer, read_manifest
from headrace.storage.open.sources import index_options, open_dataset
from headrace.storage.packing.build import (
    CountRows,
    LengthSource,
    Progress,
    store_lengths,
    store_packing,
)
from headrace.storage.packing.lengths import (
    Documents,
    Part,
    cost_column,
    document_column,
    read_lengths,
)
from headrace.storage.packing.pointer import PackingPointer, RowOptions
from headrace.storage.packing.stored import read_packing
from headrace.storage.shard.shard_writer import ShardEntry
from headrace.storage.source.source import SourceOptions
from headrace.storage.store.open_store import open_store
from headrace.storage.store.store import Store
from headrace.storage.tokenizer.tokenizer import Tokenizer


def index_packing(
    url: str,
    options: RowOptions,
    *,
    count_rows: CountRows,
    columns: Sequence[str] = (),
    refuse_longer: bool = False,
    tokenizer: Tokenizer | None = None,
    source_options: SourceOptions | None = None,
    progress: Progress = lambda _done, _total: None,
) -> PackingPointer:
    """Store the tables that packing the documents of the current version into rows needs.

    Args:
        url: The URL of the dataset, or ``INDEX from SOURCE``.
        options: How documents become rows.
        count_rows: Returns how many rows the documents of a group make, such as
            `headrace.order.packing.group_row_count`.
        columns: The column of documents, followed by others of equal lengths, which are packed the
            same way. If empty, the only column of lists of numbers, or of text with a tokenizer.
        refuse_longer: Whether a document longer than a row is an error.
        tokenizer: Tokenizes a column of text, whose lengths in tokens are then stored; None for a
            column of lists.
        source_options: The source to use, and what each source may do.
        progress: Called with the number of blocks read or groups counted, and their total number.

    Returns:
        The pointer to the stored tables.

    Raises:
        HeadraceError: See `open_dataset`.
        ColumnNotFoundError: There is no such column.
        BadArgumentError: A column holds no documents, a document is too long or cannot be
            tokenized, or the rows of two columns have different lengths.
        CommitConflictError: Another writer came in between.
    """
    url, chosen = index_options(url, source_options or SourceOptions())
    store = open_store(url)
    try:
        with open_dataset(url, source_options=chosen) as dataset:
            wanted: Sequence[str | None] = columns or [None]
            is_text = tokenizer is not None
            if is_text and len(wanted) > 1:
                raise BadArgumentError(
                    f"columns {', '.join(map(str, wanted))} should be packed in the same way, but "
                    "one is tokenized, so no other has its lengths; tokenize before you convert",
                    field="alike",
                )
            names = [document_column(dataset.schema, name, is_text=is_text) for name in wanted]
            return store_packing(
                store,
                dataset,
                options,
                documents=Documents(tuple(names), tokenizer),
                count_rows=count_rows,
                earlier=_earlier(store, dataset.fingerprint),
                refuse_longer=refuse_longer,
                progress=progress,
            )
    finally:
        store.close()


def index_cost(
    url: str,
    column: str,
    *,
    source_options: SourceOptions | None = None,
    progress: Progress = lambda _done, _total: None,
) -> PackingPointer:
    """Store what the samples of the current version cost, according to a column.

    Args:
        url: The URL of the dataset, or ``INDEX from SOURCE``.
        column: The column, of whole numbers in [0, 2^32).
        source_options: The source to use, and what each source may do.
        progress: Called with the number of blocks read, and their total number.

    Returns:
        The pointer to the stored costs.

    Raises:
        HeadraceError: See `open_dataset`.
        ColumnNotFoundError: There is no such column.
        BadArgumentError: The column has other values, or nulls.
        CommitConflictError: Another writer came in between.
    """
    url, chosen = index_options(url, source_options or SourceOptions())
    with closing(open_store(url)) as store, open_dataset(url, source_options=chosen) as dataset:
        documents = Documents((cost_column(dataset.schema, column),), are_costs=True)
        known = read_packing(store, dataset.fingerprint, cost=column)
        if known is not None:
            return known
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="headrace-cost") as threads:

            def parts(first: int) -> Iterator[Part]:
                return read_lengths(
                    dataset,
                    documents,
                    first_sample=first,
                    threads=threads,
                    progress=lambda done: progress(done, dataset.block_count),
                )

            source = LengthSource(dataset.fingerprint, dataset.sample_count, documents, parts)
            return store_lengths(store, source, _earlier(store, dataset.fingerprint, cost=column))


def store_converted_lengths(
    store: Store, manifest: Manifest, entries: Sequence[ShardEntry], column: str
) -> bool:
    """Store the lengths that were recorded while shards were written, so none need be read.

    Args:
        store: The store of the dataset.
        manifest: The manifest of the version that was committed with the shards.
        entries: The shards, which are the last ones of the version.
        column: The column of the lengths.

    Returns:
        Whether they were stored. They are not if the shards were appended to shards without
        lengths.

    Raises:
        HeadraceError: The store failed or refused.
    """
    documents = Documents((column,))
    before = manifest.sample_count - sum(entry.sample_count for entry in entries)
    earlier = _earlier(store, manifest.fingerprint) if before else None
    if before and (earlier is None or earlier.source != (documents.digest, column)):
        return False

    def parts(first: int) -> Iterator[Part]:
        assert first == before
        return (_part_of(entry) for entry in entries if entry.lengths is not None)

    source = LengthSource(manifest.fingerprint, manifest.sample_count, documents, parts)
    store_lengths(store, source, earlier)
    return True


def _part_of(entry: ShardEntry) -> Part:
    assert entry.lengths is not None
    spread = [
        np.diff(raw * np.arange(count + 1) // max(count, 1))
        for raw, count in zip(
            entry.blocks["raw_bytes"].tolist(), entry.blocks["sample_count"].tolist(), strict=True
        )
    ]
    return entry.lengths.astype(np.int64), np.concatenate([*spread, np.empty(0, np.int64)])


def _earlier(store: Store, fingerprint: str, *, cost: str = "") -> PackingPointer | None:
    """Return the stored tables of the latest version that this one appends to."""
    try:
        pointer, _ = read_any_pointer(store)
    except (ObjectNotFoundError, ManifestCorruptError):
        return None
    if not isinstance(pointer, Pointer) or pointer.current.fingerprint != fingerprint:
        return None
    names = read_manifest(store, pointer.current).names
    for version in reversed(pointer.versions[:-1]):
        found = read_packing(store, version.fingerprint, cost=cost)
        if found is not None:
            before = read_manifest(store, version).names
            # Shards never change, so equal names mean equal content.
            if names[: len(before)].equals(before):
                return found
    return None
