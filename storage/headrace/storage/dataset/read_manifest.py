"""Read the tables of a dataset from its store: the pointer, a manifest, a block table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ManifestCorruptError, NotADatasetError, ObjectNotFoundError
from headrace.storage.dataset.manifest import Manifest, decode_shard_table
from headrace.storage.dataset.pointer import (
    IndexPointer,
    Pointer,
    TableFile,
    VersionEntry,
    decode_pointer,
)
from headrace.storage.shard.block_table import PAGE_BLOCKS, concatenated, decode_page
from headrace.storage.source.kinds import POINTER_NAME
from headrace.storage.store.store import Store, Version


def shards_pointer(pointer: Pointer | IndexPointer, url: str) -> Pointer:
    """Return the pointer to a dataset of headrace's own shards.

    Raises:
        NotADatasetError: It points to a stored index.
    """
    if isinstance(pointer, IndexPointer):
        raise NotADatasetError(
            f"{url} contains a stored index and no shards; store it again with `headrace index`, "
            "or give the URL of a dataset",
            url=url,
        )
    return pointer


def read_any_pointer(store: Store) -> tuple[Pointer | IndexPointer, Version]:
    """Return ``headrace.json`` of either kind, and the version to replace it by.

    Raises:
        ObjectNotFoundError: There is no ``headrace.json``.
        ManifestCorruptError: It is damaged.
    """
    content, version = store.read_versioned(POINTER_NAME)
    return decode_pointer(content, place=f"{store.url}/{POINTER_NAME}"), version


def read_manifest(store: Store, entry: VersionEntry) -> Manifest:
    """Return the manifest of one version, verified.

    Raises:
        ManifestCorruptError: It is missing, or does not match ``headrace.json``.
    """
    content = read_table(store, entry.shards)
    place = f"{store.url}/{entry.shards.name}"
    return decode_shard_table(content, fingerprint=entry.fingerprint, place=place)


def read_block_rows(store: Store, entry: VersionEntry, manifest: Manifest) -> NDArray[np.void]:
    """Return the whole block table of one version, verified: 28 bytes a block.

    Raises:
        ManifestCorruptError: It is missing, or does not match the shard table.
    """
    content = read_table(store, entry.blocks)
    place = f"{store.url}/{entry.blocks.name}"
    return concatenated(
        [
            decode_page(
                content[page.offset : page.offset + page.stored_bytes],
                page,
                row_count=page_row_count(index, manifest.block_count),
                place=place,
            )
            for index, page in enumerate(manifest.pages)
        ]
    )


def read_table(store: Store, table: TableFile) -> bytes:
    """Return a whole file of the manifest.

    Raises:
        ManifestCorruptError: It is missing, or has another size.
    """
    place = f"{store.url}/{table.name}"
    try:
        # One byte more than needed shows whether the file is longer.
        content = store.read(table.name, length=table.stored_bytes + 1)
    except ObjectNotFoundError as error:
        raise ManifestCorruptError(
            f"{store.url}/{POINTER_NAME} names {table.name}, which is missing; restore it or "
            "convert the data again",
            place=place,
        ) from error
    if len(content) != table.stored_bytes:
        raise ManifestCorruptError(
            f"{place} has {len(content)} bytes, but {POINTER_NAME} says {table.stored_bytes}; "
            "restore it or convert the data again",
            place=place,
        )
    return content


def page_row_count(index: int, block_count: int) -> int:
    """Return how many rows page ``index`` has."""
    return min(PAGE_BLOCKS, block_count - index * PAGE_BLOCKS)
