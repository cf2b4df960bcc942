"""Find what is left of a dataset with a damaged manifest: its shards and their order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, ManifestCorruptError, ObjectNotFoundError
from headrace.storage.dataset.manifest import Manifest
from headrace.storage.dataset.newer_format import NewerFormatError
from headrace.storage.dataset.pointer import (
    MANIFEST_FOLDER,
    TableFile,
    VersionEntry,
    decode_pointer,
)
from headrace.storage.dataset.read_manifest import read_block_rows, read_manifest, shards_pointer
from headrace.storage.shard.shard_writer import SHARD_FOLDER
from headrace.storage.source.kinds import POINTER_NAME
from headrace.storage.store.store import Store, Version

_TABLE = re.compile(rf"({MANIFEST_FOLDER}/([0-9a-f]{{32}})-[0-9a-f]{{8}})\.shards\.arrow")
# The converter's names of shards: partition, number in the partition, job, attempt.
_CONVERTED = re.compile(r"(\d{5})-(\d{4})-([0-9a-f]{8})([0-9a-f]+)\.arrow")


@dataclass(frozen=True, slots=True, eq=False)
class Remains:
    """What is left of a dataset, from which a repair starts.

    Attributes:
        names: The shards, in the order of their samples.
        versions: The versions whose tables can be read; they stay.
        replaced: The version of the existing ``headrace.json``, or `None` if there is none.
        manifest: The manifest of the version to repair, or `None` if its shard table is gone.
        rows: The rows of its block table for each shard, or `None` if that is gone.
        is_intact: Whether ``headrace.json`` and both tables of the current version are intact.
    """

    names: tuple[str, ...]
    versions: tuple[VersionEntry, ...]
    replaced: Version | None
    manifest: Manifest | None = None
    rows: tuple[NDArray[np.void], ...] | None = None
    is_intact: bool = False

    @property
    def schema(self) -> pa.Schema | None:
        """The schema that shards were written with, if it is known."""
        return None if self.manifest is None else self.manifest.stored_schema

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the version to repair, if it is known."""
        return None if self.manifest is None else self.manifest.fingerprint

    def sample_count(self, shard: int) -> int | None:
        """Return how many samples a shard should have, if that is known."""
        return None if self.manifest is None else int(self.manifest.sample_counts[shard])


def find_remains(store: Store, patterns: Sequence[str] = ()) -> Remains:
    """Find the best remaining source for the list of shards.

    Args:
        store: The store of the dataset.
        patterns: Patterns of names to take instead, in the order of the samples.

    Raises:
        BadArgumentError: The names alone do not show which shards belong together, a pattern
            matches none, or there are none.
        NotADatasetError: The store holds a stored index.
        NewerFormatError: ``headrace.json`` or a table is from a newer headrace.
    """
    listed, replaced = _listed(store)
    candidates = _tables(store) if listed is None else listed
    versions = tuple(_readable(store, candidates))
    manifest, rows = (None, None)
    if candidates and not patterns:
        manifest, rows = _tables_of(store, candidates[-1])
    if manifest is None:
        return Remains(_names(store, patterns), versions, replaced)
    cuts = None if rows is None else np.split(rows, np.cumsum(manifest.block_counts)[:-1])
    return Remains(
        names=tuple(str(name) for name in manifest.names.to_pylist()),
        versions=versions,
        replaced=replaced,
        manifest=manifest,
        rows=None if cuts is None else tuple(cuts),
        is_intact=listed is not None and rows is not None,
    )


def _listed(store: Store) -> tuple[Sequence[VersionEntry] | None, Version | None]:
    """Return the versions in ``headrace.json``, if readable, and the version to replace it by.

    It is read once. Commits after that are newer than what is repaired, and are not replaced.
    """
    try:
        content, version = store.read_versioned(POINTER_NAME)
    except ObjectNotFoundError:
        return None, None
    try:
        pointer = decode_pointer(content, place=f"{store.url}/{POINTER_NAME}")
    except NewerFormatError:
        raise
    except ManifestCorruptError:
        return None, version
    return shards_pointer(pointer, store.url).versions, version


def _readable(store: Store, versions: Sequence[VersionEntry]) -> Iterator[VersionEntry]:
    """Yield the versions of which both tables can be read."""
    for version in versions:
        manifest, rows = _tables_of(store, version)
        if manifest is not None and rows is not None:
            yield replace(version, sample_count=manifest.sample_count)


def _tables_of(
    store: Store, entry: VersionEntry
) -> tuple[Manifest | None, NDArray[np.void] | None]:
    """Return both tables of a version, or None for one that cannot be read."""
    try:
        manifest = read_manifest(store, entry)
    except NewerFormatError:
        raise
    except ManifestCorruptError:
        return None, None
    try:
        return manifest, read_block_rows(store, entry, manifest)
    except ManifestCorruptError:
        return manifest, None


def _tables(store: Store) -> list[VersionEntry]:
    """Return the versions that tables in the store describe, the newest last."""
    found = {entry.name: entry for entry in store.list_entries(f"{MANIFEST_FOLDER}/")}
    versions = []
    for entry in sorted(found.values(), key=lambda entry: (entry.written_s, entry.name)):
        table = _TABLE.fullmatch(entry.name)
        if table is None:
            continue
        blocks = found.get(f"{table[1]}.blocks.arrow")
        versions.append(
            VersionEntry(
                fingerprint=table[2],
                created=datetime.fromtimestamp(entry.written_s, UTC).isoformat(timespec="seconds"),
                sample_count=0,
                shards=TableFile(entry.name, entry.stored_bytes),
                blocks=TableFile(f"{table[1]}.blocks.arrow", blocks.stored_bytes if blocks else 0),
            )
        )
    return versions


def _names(store: Store, patterns: Sequence[str]) -> tuple[str, ...]:
    folder = f"{SHARD_FOLDER}/"
    found = sorted(name.removeprefix(folder) for name in store.list(folder))
    if not found:
        raise BadArgumentError(
            f"there are no shards in {store.url}/{SHARD_FOLDER}; check the URL", field="url"
        )
    if not patterns:
        _check_one_conversion(found, store.url)
        return tuple(found)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        fitting = [name for name in found if fnmatchcase(name, pattern)]
        if not fitting:
            raise BadArgumentError(
                f"no shard in {store.url} is named {pattern!r}; there are {found[0]} and "
                f"{len(found) - 1} more",
                field="shards",
            )
        chosen |= dict.fromkeys(fitting)
    return tuple(chosen)


def _check_one_conversion(names: Sequence[str], url: str) -> None:
    attempts: dict[str, str] = {}
    for name in names:
        parts = _CONVERTED.fullmatch(name)
        if parts is None:
            continue
        partition, _, job, attempt = parts.groups()
        mine = job + attempt
        if attempts.setdefault("", job) != job or attempts.setdefault(partition, mine) != mine:
            raise BadArgumentError(
                f"no manifest in {url} can be read, and the shards come from several conversions "
                f"or attempts ({_counts(names)}); name those that belong to the dataset, in its "
                f"order, with --shards '*-{mine}.arrow' and so on",
                field="shards",
            )


def _counts(names: Sequence[str]) -> str:
    counts = Counter(parts[3] for name in names if (parts := _CONVERTED.fullmatch(name)))
    return ", ".join(f"{count} of job {job}" for job, count in counts.items())
