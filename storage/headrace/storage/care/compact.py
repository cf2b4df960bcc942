"""Rewrite a dataset in shards of the right size, as a new version with the same samples.

Contract of `compact`:

1. Success: the new version has the samples of the current one in the same order, and becomes
   current. Older versions stay until `headrace gc` removes them.
2. Conflict: another commit came first; it stands, and the caller gets an error.
3. Failure, interrupt, kill: the dataset is unchanged, and the next call with the same arguments
   uses the shards that this one finished (`headrace.storage.care.compact_shards`).
4. What is written, and so the new fingerprint, depends only on the version and the arguments, and
   not on threads or interruptions.
5. Memory: the block table, and for each thread what `stream_blocks` and `ShardSeries` hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import (
    BadArgumentError,
    InternalError,
    NotADatasetError,
    ObjectNotFoundError,
)
from headrace.storage.care.compact_shards import Compaction, Piece, Work, written_shards
from headrace.storage.dataset.commit import build_manifest
from headrace.storage.dataset.manifest import Manifest
from headrace.storage.dataset.pointer import Pointer
from headrace.storage.dataset.publish import publish
from headrace.storage.dataset.read_manifest import (
    read_any_pointer,
    read_block_rows,
    read_manifest,
    shards_pointer,
)
from headrace.storage.dataset.writer_notes import WriterNotes
from headrace.storage.shard.shard_series import DEFAULT_SHARD_BYTES, ShardSizes
from headrace.storage.shard.shard_writer import (
    DEFAULT_BLOCK_BYTES,
    Compression,
    check_blocks,
)
from headrace.storage.source.kinds import POINTER_NAME, refuse_absent
from headrace.storage.store.store import Store, Version

_THREADS = 4  # each reads, compresses and sends in turn, so more threads than cores are useful
_SPARE = 0.1  # shards beyond the minimum, as a share of it, that are not worth a rewrite
_RULES = "1"  # version of the rules for cutting; shards of other versions are not reused


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Options for rewriting shards.

    Attributes:
        shard_bytes: The most raw bytes of a shard, unless a single sample has more.
        block_bytes: The approximate raw bytes of a block; `None` is 1 MiB, or ``shard_bytes`` if
            that is less.
        compression: The compression of each block.
        compression_level: The level of the compression; `None` is its default.

    Raises:
        BadArgumentError: A value is out of range.
    """

    shard_bytes: int = DEFAULT_SHARD_BYTES
    block_bytes: int | None = None
    compression: Compression = "lz4"
    compression_level: int | None = None

    def __post_init__(self) -> None:
        """Check the options, as `ShardWriter` would."""
        if self.shard_bytes < (self.block_bytes or 1):
            least = f"block_bytes, {self.block_bytes}" if self.block_bytes else "1"
            raise BadArgumentError(
                f"shard_bytes is {self.shard_bytes}, expected at least {least}",
                field="shard_bytes",
            )
        check_blocks(self.compression, self.sizes.block_bytes, self.compression_level)

    @property
    def sizes(self) -> ShardSizes:
        """How to cut the samples of one shard into blocks."""
        block_bytes = self.block_bytes
        if block_bytes is None:
            block_bytes = min(DEFAULT_BLOCK_BYTES, self.shard_bytes)
        return ShardSizes(self.compression, self.compression_level, None, block_bytes)

    def sizes_for(self, raw_bytes: int) -> ShardSizes:
        """Return how to cut ``raw_bytes`` of samples, which may fill more than one shard."""
        return (
            self.sizes
            if raw_bytes <= self.shard_bytes
            else replace(self.sizes, shard_bytes=self.shard_bytes)
        )


@dataclass(frozen=True, slots=True)
class CompactReport:
    """The result of a compaction.

    Attributes:
        fingerprint: The fingerprint of the current version.
        fingerprint_before: The fingerprint of the version before it.
        sample_count: How many samples both versions have.
        shards_before: How many shards the earlier version had.
        shard_count: How many shards the current version has.
        shards_taken: How many of these an interrupted call had written.
        raw_bytes: The raw bytes of the samples.
        stored_bytes: The stored bytes of the current version's shards.
        written: Whether a new version was committed; it is not if that would hardly reduce the
            number of shards.
    """

    fingerprint: str
    fingerprint_before: str
    sample_count: int
    shards_before: int
    shard_count: int
    shards_taken: int
    raw_bytes: int
    stored_bytes: int
    written: bool


def compact(
    store: Store,
    *,
    options: CompactOptions | None = None,
    threads: int = _THREADS,
    progress: Callable[[Compaction], None] | None = None,
) -> CompactReport:
    """Rewrite the current version of a dataset in fewer, larger shards.

    Args:
        store: The store of the dataset.
        options: How to rewrite the shards; `None` for the defaults.
        threads: How many shards to write at the same time.
        progress: Called in the caller's thread, after each shard.

    Raises:
        NotADatasetError: There is no dataset, or none of headrace's own shards.
        ManifestCorruptError: The manifest is damaged.
        ShardCorruptError: A block is damaged; the dataset is unchanged.
        CommitConflictError: Another commit came in between.
        StoreUnavailableError: The store could not be reached; call again to continue.

    Example:
        >>> store = open_store(url)
        >>> report = compact(store)
        >>> report.shards_before, report.shard_count, report.written
        (2, 2, False)
    """
    options = options or CompactOptions()
    pointer, version = _read_pointer(store)
    entry = pointer.current
    manifest = read_manifest(store, entry)
    rows = read_block_rows(store, entry, manifest)
    pieces = _plan(rows, options.shard_bytes)
    if not _is_worth_it(manifest, len(pieces), options):
        return _report(manifest, manifest, taken=0, written=False)
    plan = _plan_name(manifest.fingerprint, options)
    work = Work(store, manifest, rows, options.sizes_for, plan)
    with WriterNotes(plan) as notes:
        notes.leave(store)
        shards, taken = written_shards(work, pieces, threads=threads, progress=progress)
        new, blocks = build_manifest(manifest.stored_schema, shards)
        _refuse_difference(manifest, new, store.url)
        others = [kept for kept in pointer.versions if kept.fingerprint != new.fingerprint]
        notes.check()
        publish(store, new, blocks, before=others, replaced=version)
    return _report(manifest, new, taken=taken, written=True)


def _refuse_difference(manifest: Manifest, new: Manifest, url: str) -> None:
    if (new.sample_count, int(new.raw_bytes.sum())) != (
        manifest.sample_count,
        int(manifest.raw_bytes.sum()),
    ):
        raise InternalError(
            f"compacting {url} wrote {new.sample_count} of {manifest.sample_count} samples from "
            f"{manifest.shard_count} shards; nothing was committed: please report this"
        )


def _read_pointer(store: Store) -> tuple[Pointer, Version]:
    try:
        pointer, version = read_any_pointer(store)
    except ObjectNotFoundError as error:
        refuse_absent(store.url)
        raise NotADatasetError(
            f"{store.url} has no {POINTER_NAME}; only datasets in headrace's own format can be "
            "compacted, so check the URL, or convert the files there",
            url=store.url,
        ) from error
    return shards_pointer(pointer, store.url), version


def _plan(rows: NDArray[np.void], shard_bytes: int) -> list[Piece]:
    """Divide all blocks into pieces of at most ``shard_bytes``, or of one block."""
    ends = np.cumsum(rows["raw_bytes"], dtype=np.int64)
    samples = np.cumsum(rows["sample_count"], dtype=np.int64)
    pieces: list[Piece] = []
    first = 0
    while first < len(rows):
        used, seen = (int(ends[first - 1]), int(samples[first - 1])) if first else (0, 0)
        stop = int(np.searchsorted(ends, used + shard_bytes, side="right"))
        stop = max(stop, first + 1)
        counts = int(samples[stop - 1]) - seen, int(ends[stop - 1]) - used
        pieces.append(Piece(len(pieces), first, stop, *counts))
        first = stop
    return pieces


def _is_worth_it(manifest: Manifest, planned: int, options: CompactOptions) -> bool:
    """Return whether there would be far fewer shards, or whether some are too large now.

    Blocks that are cut again may fit shards a little better; that alone is not worth a rewrite.
    """
    is_over = (manifest.raw_bytes > options.shard_bytes) & (manifest.block_counts > 1)
    least = -(-int(manifest.raw_bytes.sum()) // options.shard_bytes)
    most = 1 + least * (1 + _SPARE)
    return bool(is_over.any()) or manifest.shard_count > max(planned, most)


def _plan_name(fingerprint: str, options: CompactOptions) -> str:
    """Return the 8 digits that the names of all shards of a plan share."""
    sizes = options.sizes
    what = (_RULES, fingerprint, options.shard_bytes, sizes.block_bytes, sizes.compression)
    return xxhash.xxh3_64_hexdigest(repr((*what, sizes.level)).encode())[:8]


def _report(before: Manifest, now: Manifest, *, taken: int, written: bool) -> CompactReport:
    return CompactReport(
        fingerprint=now.fingerprint,
        fingerprint_before=before.fingerprint,
        sample_count=now.sample_count,
        shards_before=before.shard_count,
        shard_count=now.shard_count,
        shards_taken=taken,
        raw_bytes=int(now.raw_bytes.sum()),
        stored_bytes=int(now.stored_bytes.sum()),
        written=written,
    )
