"""Publish a change of a dataset: tables first, ``headrace.json`` last."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from headrace.errors import (
    CommitConflictError,
    HeadraceError,
    ObjectNotFoundError,
    WorldError,
)
from headrace.storage.dataset.manifest import Manifest, encode_shard_table
from headrace.storage.dataset.pointer import (
    MANIFEST_FOLDER,
    IndexPointer,
    Pointer,
    TableFile,
    VersionEntry,
    encode_pointer,
)
from headrace.storage.dataset.read_manifest import read_any_pointer
from headrace.storage.dataset.writer_notes import leave_note
from headrace.storage.source.kinds import POINTER_NAME
from headrace.storage.store.conditional import write_unless_changed
from headrace.storage.store.store import Store, Version

_SUFFIX = 8
_ATTEMPTS = 5  # arbitrary: each is lost to another collection


def table_stem(fingerprint: str) -> str:
    """Return the prefix of the names of a version's tables.

    The suffix distinguishes commits of equal content, whose shards have different names.
    """
    return f"{MANIFEST_FOLDER}/{fingerprint}-{uuid.uuid4().hex[:_SUFFIX]}"


@contextlib.contextmanager
def tables_held(store: Store, stem: str) -> Iterator[None]:
    """Keep `headrace gc` from tables with this prefix until they are published."""
    note = leave_note(store, stem[-_SUFFIX:])
    try:
        yield
    finally:
        with contextlib.suppress(HeadraceError):
            store.delete(note)


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
        CommitConflictError: ``headrace.json`` has changed, other than by fewer old versions, and
            does not list the manifest; this call left nothing behind.
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
    with tables_held(store, stem):
        store.write(entry.blocks.name, blocks)
        store.write(entry.shards.name, shards)
        try:
            _add(store, entry, before=before, replaced=replaced)
        except CommitConflictError:
            with contextlib.suppress(WorldError):
                store.delete(entry.shards.name)
                store.delete(entry.blocks.name)
            raise


def _add(
    store: Store,
    entry: VersionEntry,
    *,
    before: Sequence[VersionEntry],
    replaced: Version | None,
) -> None:
    """Write ``headrace.json`` with one more version; again if gc has removed older ones."""
    for attempt in range(_ATTEMPTS):
        try:
            write_pointer(store, Pointer((*before, entry)), replaced=replaced)
        except CommitConflictError:
            found, version = _read_versions(store)
            if entry in found:  # the answer was lost, and another commit may have followed
                return
            only_fewer = found and found[-1:] == tuple(before[-1:]) and set(found) <= set(before)
            if not only_fewer or attempt == _ATTEMPTS - 1:
                raise
            before, replaced = found, version
        else:
            return


def _read_versions(store: Store) -> tuple[tuple[VersionEntry, ...], Version | None]:
    """Return the versions that are listed now; none for a stored index, or for nothing."""
    try:
        found, version = read_any_pointer(store)
    except ObjectNotFoundError:
        return (), None
    return (found.versions if isinstance(found, Pointer) else ()), version


def write_pointer(
    store: Store, pointer: Pointer | IndexPointer, *, replaced: Version | None
) -> None:
    """Write ``headrace.json`` if it is unchanged; read it back if the answer was lost.

    Raises:
        CommitConflictError: It has changed.
    """
    write_unless_changed(store, POINTER_NAME, encode_pointer(pointer), replaced=replaced)
