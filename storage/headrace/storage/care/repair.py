"""Rebuild a manifest from the shards that still exist.

The best remaining source determines which shards belong to the dataset, and in which order: the
current version's shard table; without ``headrace.json``, the newest table in the store; without
such a table, the names of the shards, provided that they come from one conversion.

If the block table still exists, each block is verified against it, and damaged blocks are left out.
Otherwise each shard is read as a whole, and left out if any of it is damaged, because it is not
known which of its blocks are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.errors import BadArgumentError, ObjectNotFoundError, ShardCorruptError
from headrace.storage.care.salvage import Remains, find_remains
from headrace.storage.care.scan import (
    Lost,
    ScannedShard,
    of_another_schema,
    scan_shard,
    verify_shard,
)
from headrace.storage.dataset.commit import build_manifest
from headrace.storage.dataset.publish import publish
from headrace.storage.shard.column_facts import joined_schema
from headrace.storage.shard.shard_writer import SHARD_FOLDER, ShardEntry
from headrace.storage.store.store import Store

_THREADS = 4  # each holds a shard


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of a repair.

    Attributes:
        fingerprint: The fingerprint of the rebuilt manifest.
        fingerprint_before: The fingerprint of the version that was current before, or `None` if
            that is not known.
        sample_count: How many samples there are now.
        shard_count: How many shards there are now.
        lost: The samples that could not be recovered.
        written: Whether a new version was committed; it is not if nothing was wrong.
    """

    fingerprint: str
    fingerprint_before: str | None
    sample_count: int
    shard_count: int
    lost: tuple[Lost, ...]
    written: bool

    @property
    def samples_lost(self) -> int | None:
        """The number of lost samples, or `None` if it is not known."""
        counts = [lost.sample_count for lost in self.lost]
        return None if None in counts else sum(count or 0 for count in counts)


def repair_manifest(
    store: Store,
    *,
    patterns: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> RepairReport:
    """Read every shard, and commit a manifest of them.

    Args:
        store: The store of the shards.
        patterns: Names of the shards to take, with ``*`` and ``?``, in the order of the samples. If
            empty, the remaining manifests or names decide.
        progress: Called with the number of shards read, and with their total number.

    Raises:
        BadArgumentError: No shard is left, or the names do not show which shards belong together.
        NotADatasetError: The store holds a stored index.
        ManifestCorruptError: ``headrace.json`` or a table is from a newer headrace; nothing was
            changed.
        CommitConflictError: Another commit came in between; nothing was changed.
    """
    remains = find_remains(store, patterns)
    entries: list[ShardEntry] = []
    lost: list[Lost] = []
    schema = remains.schema
    for done, shard in enumerate(_scanned(store, remains), start=1):
        schema = schema or shard.schema
        joined = schema if shard.entry is None else _joined(schema, shard, store.url)
        found = shard if joined or schema is None else of_another_schema(shard, schema)
        schema = schema if remains.schema else joined or schema
        lost += found.lost
        if found.entry is not None:
            entries.append(found.entry)
        if progress is not None:
            progress(done, len(remains.names))
    if not entries or schema is None:
        raise BadArgumentError(
            f"none of the {len(remains.names)} shards in {store.url} can be read; nothing was "
            "changed, restore them first",
            field="url",
        )
    return _committed(store, remains, schema, entries=entries, lost=lost)


def _joined(schema: pa.Schema | None, shard: ScannedShard, place: str) -> pa.Schema | None:
    """Return the joined schema of the shards so far and one more; None if they do not fit."""
    if schema is None or shard.schema is None:
        return None
    try:
        return joined_schema(schema, shard.schema, place=place)
    except BadArgumentError:  # a number stands for different classes
        return None


def _committed(
    store: Store,
    remains: Remains,
    schema: pa.Schema,
    *,
    entries: Sequence[ShardEntry],
    lost: Sequence[Lost],
) -> RepairReport:
    manifest, blocks = build_manifest(schema, entries)
    is_intact = remains.is_intact and not lost and _match_table(entries, remains)
    if not is_intact:
        before = [v for v in remains.versions if v.fingerprint != manifest.fingerprint]
        publish(store, manifest, blocks, before=before, replaced=remains.replaced)
    return RepairReport(
        fingerprint=manifest.fingerprint,
        fingerprint_before=remains.fingerprint,
        sample_count=manifest.sample_count,
        shard_count=manifest.shard_count,
        lost=tuple(lost),
        written=not is_intact,
    )


def _match_table(entries: Sequence[ShardEntry], remains: Remains) -> bool:
    rows = remains.rows or ()
    return all(
        np.array_equal(entry.blocks, stated) for entry, stated in zip(entries, rows, strict=True)
    )


def _scanned(store: Store, remains: Remains) -> Iterator[ScannedShard]:
    """Yield all shards in order; the pool of threads ends with the generator."""

    def scan(shard: int) -> ScannedShard:
        found = _scan(store, remains, shard)
        # Reads again, in case the bytes were damaged in transit.
        return _scan(store, remains, shard) if found.lost else found

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-repair")
    try:
        yield from pool.map(scan, range(len(remains.names)))
    finally:
        pool.shutdown(cancel_futures=True)


def _scan(store: Store, remains: Remains, shard: int) -> ScannedShard:
    name = remains.names[shard]
    try:
        content = store.read(f"{SHARD_FOLDER}/{name}")
        if remains.rows is None or remains.schema is None:
            return scan_shard(content, name=name)
        return verify_shard(content, name=name, rows=remains.rows[shard], schema=remains.schema)
    except (ObjectNotFoundError, ShardCorruptError) as error:
        return ScannedShard(
            None, None, (Lost(name, None, remains.sample_count(shard), error.message),)
        )
