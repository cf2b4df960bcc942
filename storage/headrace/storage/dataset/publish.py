"""Publish a change of a dataset: tables first, ``headrace.json`` last."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from headrace.errors import CommitConflictError, ObjectNotFoundError, WorldError
from headrace.storage.dataset.manifest import Manifest, encode_shard_table
from headrace.storage.dataset.pointer import (
    IndexPointer,
    Pointer,
    TableFile,
    VersionEntry,
    encode_pointer,
)
from headrace.storage.dataset.read_manifest import read_any_pointer
from headrace.storage.source.kinds import POINTER_NAME
from headrace.storage.store.conditional import write_unless_changed
from headrace.storage.store.store import Store, Version

MANIFEST_FOLDER = "manifests"


def table_stem(fingerprint: str) -> str:
    """Return the prefix of the names of a version's tables.

    The suffix distinguishes commits of equal content, whose shards have different names.
    """
    return f"{MANIFEST_FOLDER}/{fingerprint}-{uuid.uuid4().hex[:8]}"


def now_text() -> str:
    """Return the current time, as ``created`` states it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def publish(
    store: Store,
    manifest: Manifest,
    blocks: bytes,
    *,
    before: Sequence[VersionEntry],
    replaced: Version | None,
) -> None:
    """Make a manifest the current version.

    Args:
        store: The store of the shards.
        manifest: The version to publish.
        blocks: Its block table.
        before: The earlier versions to keep.
        replaced: The version of the existing ``headrace.json``, or `None` if there is none.

    Raises:
        CommitConflictError: ``headrace.json`` has changed, and does not list the manifest; this
            call left nothing behind.
    """
    stem = table_stem(manifest.fingerprint)
    shards = encode_shard_table(manifest)
    entry = VersionEntry(
        fingerprint=manifest.fingerprint,
        created=now_text(),
        sample_count=manifest.sample_count,
        shards=TableFile(f"{stem}.shards.arrow", len(shards)),
        blocks=TableFile(f"{stem}.blocks.arrow", len(blocks)),
    )
    store.write(entry.blocks.name, blocks)
    store.write(entry.shards.name, shards)
    try:
        write_pointer(store, Pointer((*before, entry)), replaced=replaced)
    except CommitConflictError:
        if _is_listed(store, entry):
            return
        with contextlib.suppress(WorldError):
            store.delete(entry.shards.name)
            store.delete(entry.blocks.name)
        raise


def _is_listed(store: Store, entry: VersionEntry) -> bool:
    """Return whether a commit succeeded although its answer was lost and another one followed."""
    try:
        found, _ = read_any_pointer(store)
    except ObjectNotFoundError:
        return False
    return isinstance(found, Pointer) and entry in found.versions


def write_pointer(
    store: Store, pointer: Pointer | IndexPointer, *, replaced: Version | None
) -> None:
    """Write ``headrace.json`` if it is unchanged; read it back if the answer was lost.

    Raises:
        CommitConflictError: It has changed.
    """
    write_unless_changed(store, POINTER_NAME, encode_pointer(pointer), replaced=replaced)
