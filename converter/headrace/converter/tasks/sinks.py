"""Where a task puts the samples of one split: shards of one of the formats.

Contract of a sink:

1. Success: `append` and `close` return finished shards, which are complete in the store by then.
2. Failure or cancellation: `abort` removes what the sink has written, as far as it can.
3. Memory: one block and the buffers of the store's writer (arrow), or one shard (mds).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.storage import (
    SHARD_FOLDER,
    Compression,
    ShardEntry,
    ShardSeries,
    ShardSizes,
    Store,
)
from headrace.storage.mds import MdsShardEntry, MdsWriter

_REMOVING = 16  # at once: a store takes about 30 ms for each, and there may be thousands

Format = Literal["arrow", "mds"]
Entry: TypeAlias = ShardEntry | MdsShardEntry


@dataclass(frozen=True, slots=True)
class Writing:
    """How shards are written. Picklable.

    Attributes:
        format: The format of the shards.
        compression: The compression of blocks (``arrow``) or of whole shards (``mds``); `None` is
            none.
        level: The level of the compression; `None` is the library's default.
        shard_bytes: Raw bytes after which a shard ends.
        block_bytes: Raw bytes of a block; ``mds`` has none.
        hashes: The hashes of the files of ``mds``.
        lengths: A column of lists whose lengths are stored; `None` for none.
    """

    format: Format
    compression: str | None
    level: int | None
    shard_bytes: int
    block_bytes: int
    hashes: tuple[str, ...] = ()
    lengths: str | None = None

    @property
    def sizes(self) -> ShardSizes:
        """How ``arrow`` shards are cut."""
        compression: Compression = self.compression or "none"  # type: ignore[assignment] # checked by check_blocks before the job
        return ShardSizes(compression, self.level, self.shard_bytes, self.block_bytes, self.lengths)


class Sink(Protocol):
    """The shards of one split in one task."""

    def append(self, batch: pa.RecordBatch) -> Sequence[Entry]:
        """Add samples and return the shards that they finish."""

    def close(self) -> Sequence[Entry]:
        """Finish the last shard and return the shards not returned yet."""

    def abort(self) -> None:
        """Remove everything that was written."""


def open_sink(store: Store, schema: pa.Schema, writing: Writing, *, stem: str) -> Sink:
    """Open a sink for the shards of one split.

    Args:
        store: The store of the split's dataset; the caller closes it.
        schema: The schema of the batches.
        writing: How to write.
        stem: Part of all names, unique to this attempt: ``<partition>-<job and attempt>``.
    """
    if writing.format == "mds":
        return MdsSink(store, schema, writing, folder=stem)
    return ArrowSink(store, schema, writing, stem=stem)


class ArrowSink:
    """Shards of our own format with even blocks, cut by raw bytes."""

    def __init__(self, store: Store, schema: pa.Schema, writing: Writing, *, stem: str) -> None:
        partition, attempt = stem.split("-", 1)
        self._series = ShardSeries(
            store,
            schema,
            writing.sizes,
            name_of=lambda number: f"{partition}-{number:04d}-{attempt}.arrow",
        )

    def append(self, batch: pa.RecordBatch) -> Sequence[ShardEntry]:
        return self._series.append(batch)

    def close(self) -> Sequence[ShardEntry]:
        return self._series.close()

    def abort(self) -> None:
        self._series.abort()


class MdsSink:
    """Shards of MosaicML Streaming, in a folder of this attempt."""

    def __init__(self, store: Store, schema: pa.Schema, writing: Writing, *, folder: str) -> None:
        self._store = store
        self._entries: Sequence[MdsShardEntry] = ()
        self._writer = MdsWriter(
            store,
            schema,
            folder=folder,
            compression=mds_compression(writing),
            hashes=writing.hashes,
            size_limit=writing.shard_bytes,
        )

    def append(self, batch: pa.RecordBatch) -> Sequence[MdsShardEntry]:
        self._writer.append(batch)
        return ()

    def close(self) -> Sequence[MdsShardEntry]:
        self._entries = self._writer.close()
        return self._entries

    def abort(self) -> None:
        self._writer.abort()
        remove_objects(self._store, [stored_name(entry) for entry in self._entries])


def mds_compression(writing: Writing) -> str | None:
    """Return MosaicML's name for a compression with its level."""
    if writing.compression is None or writing.level is None:
        return writing.compression
    return f"{writing.compression}:{writing.level}"


def stored_name(entry: Entry) -> str:
    """Return the name of a shard's object in its dataset."""
    if isinstance(entry, ShardEntry):
        return f"{SHARD_FOLDER}/{entry.name}"
    return (entry.stored or entry.raw).basename


def raw_bytes_of(entry: Entry) -> int:
    """Return the raw bytes of a shard."""
    return entry.raw_bytes if isinstance(entry, ShardEntry) else entry.raw.size


def remove_objects(store: Store, names: Sequence[str]) -> None:
    """Delete objects that no manifest names, as far as the store allows it."""

    def remove(name: str) -> None:
        with contextlib.suppress(HeadraceError):
            store.delete(name)

    if len(names) == 1:
        remove(names[0])
        return
    with ThreadPoolExecutor(_REMOVING, thread_name_prefix="headrace-remove") as pool:
        list(pool.map(remove, names))
