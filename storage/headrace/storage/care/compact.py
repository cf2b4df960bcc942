"""Rewrite a dataset in shards of the right size, as a new version with the same samples.

Contract of `compact`:

1. Success: the new version has the samples of the current one in the same order, and becomes
   current. Older versions stay until `headrace gc` removes them.
2. Conflict: another commit came first; it stands, and the caller gets an error.
3. Failure, interrupt, kill: the dataset is unchanged. Finished shards stay in the store, each with
   a note of its contents, and the next call with the same arguments uses them. A damaged note, or
   one whose shard is missing or has another size, is ignored. Shards that are taken get a new note,
   so `headrace gc` spares them however old they are (`headrace.storage.care.entry_notes`).
   Before the commit all shards are looked for, and those that are missing are written again.
4. What is written, and so the new fingerprint, depends only on the version and the arguments, and
   not on threads or interruptions.
5. Memory: for each thread that of `stream_blocks` and `ShardSeries`; and the block table.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    InternalError,
    NotADatasetError,
    ObjectNotFoundError,
)
from headrace.storage.care.entry_notes import NOTE_PREFIX, decode_entries, encode_entries
from headrace.storage.dataset.block_stream import stream_blocks
from headrace.storage.dataset.commit import build_manifest
from headrace.storage.dataset.manifest import Manifest
from headrace.storage.dataset.pointer import Pointer
from headrace.storage.dataset.publish import MANIFEST_FOLDER, publish
from headrace.storage.dataset.read_manifest import (
    read_any_pointer,
    read_block_rows,
    read_manifest,
    shards_pointer,
)
from headrace.storage.shard.block import BlockPlace
from headrace.storage.shard.shard_series import DEFAULT_SHARD_BYTES, ShardSeries, ShardSizes
from headrace.storage.shard.shard_writer import (
    DEFAULT_BLOCK_BYTES,
    SHARD_FOLDER,
    Compression,
    ShardEntry,
    check_blocks,
)
from headrace.storage.source.kinds import POINTER_NAME
from headrace.storage.store.store import Store, Version

_THREADS = 4  # each reads, compresses and sends in turn, so more threads than cores are useful
_SPARE = 0.1  # shards beyond the minimum, as a share of it, that are not worth a rewrite
_RULES = "1"  # version of the rules for cutting; shards of other versions are not reused
_ROUNDS = 3  # of writing what is missing; more means that somebody removes it again and again


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
        check_blocks(self.compression, self.sizes.block_bytes, self.compression_level)
        if self.shard_bytes < self.sizes.block_bytes:
            raise BadArgumentError(
                f"shard_bytes is {self.shard_bytes}, expected at least block_bytes, "
                f"{self.sizes.block_bytes}",
                field="shard_bytes",
            )

    @property
    def sizes(self) -> ShardSizes:
        """How to cut the samples of one shard into blocks."""
        block_bytes = self.block_bytes or min(DEFAULT_BLOCK_BYTES, self.shard_bytes)
        return ShardSizes(self.compression, self.compression_level, None, block_bytes)

    def sizes_for(self, raw_bytes: int) -> ShardSizes:
        """Return how to cut ``raw_bytes`` of samples, which may fill more than one shard."""
        return (
            self.sizes
            if raw_bytes <= self.shard_bytes
            else replace(self.sizes, shard_bytes=self.shard_bytes)
        )


@dataclass(frozen=True, slots=True)
class Compaction:
    """The progress of a compaction.

    Attributes:
        shards_done: How many of the new shards are complete in the store.
        shards_taken: How many of these an earlier, interrupted call had written.
        shards_total: How many new shards are planned.
        raw_bytes_done: The raw bytes of the samples in finished shards.
        raw_bytes_total: The raw bytes of all samples.
    """

    shards_done: int
    shards_taken: int
    shards_total: int
    raw_bytes_done: int
    raw_bytes_total: int


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
    before = manifest.shard_count
    if not _is_worth_it(manifest, len(pieces), options):
        return _report(manifest, manifest, taken=0, written=False)
    work = _Work(store, manifest, rows, options, _plan_name(manifest.fingerprint, options))
    shards, taken = _written(work, pieces, threads=threads, progress=progress)
    new, blocks = build_manifest(manifest.stored_schema, shards)
    if (new.sample_count, int(new.raw_bytes.sum())) != (
        manifest.sample_count,
        int(manifest.raw_bytes.sum()),
    ):
        raise InternalError(
            f"compacting {store.url} wrote {new.sample_count} of {manifest.sample_count} samples "
            f"from {before} shards; nothing was committed: please report this"
        )
    others = [kept for kept in pointer.versions if kept.fingerprint != new.fingerprint]
    publish(store, new, blocks, before=others, replaced=version)
    return _report(manifest, new, taken=taken, written=True)


def _new_attempt() -> str:
    return uuid.uuid4().hex[:8]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring blocks that become one shard: ordinals ``[first, stop)``."""

    number: int
    first: int
    stop: int
    sample_count: int
    raw_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """What all threads of one compaction share."""

    store: Store
    manifest: Manifest
    rows: NDArray[np.void]
    options: CompactOptions
    plan: str
    attempt: str = field(default_factory=_new_attempt)

    def places(self, piece: _Piece) -> Iterator[BlockPlace]:
        """Yield the places of the blocks of a piece."""
        ends = np.cumsum(self.manifest.block_counts)
        for block in range(piece.first, piece.stop):
            shard = int(np.searchsorted(ends, block, side="right"))
            name = f"{SHARD_FOLDER}/{self.manifest.names[shard].as_py()}"
            yield BlockPlace.of_row(self.rows[block], shard=name, block=block)

    def name_of(self, piece: _Piece, number: int) -> str:
        """Return the name of a shard of a piece, which usually has one; names sort like samples."""
        return f"{piece.number:05d}-{number:04d}-{self.plan}{self.attempt}.arrow"

    def note(self, number: int, entries: Sequence[ShardEntry]) -> None:
        """Write down which shards a piece has."""
        name = f"{NOTE_PREFIX}{self.plan}-{number:05d}-{self.attempt}"
        self.store.write(name, encode_entries(entries))


def _read_pointer(store: Store) -> tuple[Pointer, Version]:
    try:
        pointer, version = read_any_pointer(store)
    except ObjectNotFoundError as error:
        raise NotADatasetError(
            f"{store.url} has no {POINTER_NAME}; only datasets in headrace's own format can be "
            "compacted, so check the URL, or convert the files there",
            url=store.url,
        ) from error
    return shards_pointer(pointer, store.url), version


def _plan(rows: NDArray[np.void], shard_bytes: int) -> list[_Piece]:
    """Divide all blocks into pieces of at most ``shard_bytes``, or of one block."""
    ends = np.cumsum(rows["raw_bytes"], dtype=np.int64)
    samples = np.cumsum(rows["sample_count"], dtype=np.int64)
    pieces: list[_Piece] = []
    first = 0
    while first < len(rows):
        used, seen = (int(ends[first - 1]), int(samples[first - 1])) if first else (0, 0)
        stop = int(np.searchsorted(ends, used + shard_bytes, side="right"))
        stop = max(stop, first + 1)
        counts = int(samples[stop - 1]) - seen, int(ends[stop - 1]) - used
        pieces.append(_Piece(len(pieces), first, stop, *counts))
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


def _written(
    work: _Work,
    pieces: Sequence[_Piece],
    *,
    threads: int,
    progress: Callable[[Compaction], None] | None,
) -> tuple[list[ShardEntry], int]:
    """Write all missing pieces; return all shards, and how many existed already."""
    made = _taken(work, pieces)
    taken = dict(made)
    total_bytes = sum(piece.raw_bytes for piece in pieces)

    def taken_count() -> int:
        return sum(len(taken[number]) for number in taken if made.get(number) is taken[number])

    def tell() -> None:
        if progress is not None:
            done_bytes = sum(pieces[number].raw_bytes for number in made)
            progress(Compaction(len(made), taken_count(), len(pieces), done_bytes, total_bytes))

    tell()
    for _ in range(_ROUNDS):
        left = [piece for piece in pieces if piece.number not in made]
        _fill(work, left, made, threads=threads, tell=tell)
        lost = _lost(work, made)
        if not lost:
            return [entry for piece in pieces for entry in made[piece.number]], taken_count()
        for number in lost:
            del made[number]
        work = replace(work, attempt=_new_attempt())
    raise CommitConflictError(
        f"finished shards of {work.store.url} are removed before they are committed; nothing was "
        "changed: give `headrace gc` a longer --older-than, and try again",
        url=work.store.url,
    )


def _fill(
    work: _Work,
    pieces: Iterable[_Piece],
    made: dict[int, Sequence[ShardEntry]],
    *,
    threads: int,
    tell: Callable[[], None],
) -> None:
    """Write pieces, and add their shards to ``made``."""
    left = iter(pieces)
    stop = threading.Event()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="headrace-compact")
    running: dict[Future[Sequence[ShardEntry]], int] = {}
    try:
        while True:
            for piece in itertools.islice(left, threads - len(running)):
                running[pool.submit(_write, work, piece, stop)] = piece.number
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                made[running.pop(done)] = done.result()
                tell()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _lost(work: _Work, made: Mapping[int, Sequence[ShardEntry]]) -> list[int]:
    """Return the pieces that miss a shard in the store."""
    sizes = _shard_sizes(work.store)
    return [number for number, entries in made.items() if not _are_there(entries, sizes)]


def _write(work: _Work, piece: _Piece, stop: threading.Event) -> Sequence[ShardEntry]:
    """Write the shards of a piece, and a note that they are finished."""
    series = ShardSeries(
        work.store,
        work.manifest.stored_schema,
        work.options.sizes_for(piece.raw_bytes),
        name_of=lambda number: work.name_of(piece, number),
    )
    is_whole = False
    try:
        made: list[ShardEntry] = []
        for batch in stream_blocks(work.store, work.places(piece), work.manifest.stored_schema):
            if stop.is_set():
                return ()
            made.extend(series.append(batch))
        made.extend(series.close())
        _refuse_difference(work, piece, made)
        is_whole = True
    finally:
        if not is_whole:
            series.abort()
    work.note(piece.number, made)
    return made


def _refuse_difference(work: _Work, piece: _Piece, made: Sequence[ShardEntry]) -> None:
    samples = sum(entry.sample_count for entry in made)
    raw_bytes = sum(entry.raw_bytes for entry in made)
    if (samples, raw_bytes) != (piece.sample_count, piece.raw_bytes):
        raise InternalError(
            f"compacting blocks {piece.first} to {piece.stop - 1} of {work.store.url} wrote "
            f"{samples} samples of {raw_bytes} bytes, expected {piece.sample_count} of "
            f"{piece.raw_bytes}; nothing was committed: please report this"
        )


def _taken(work: _Work, pieces: Sequence[_Piece]) -> dict[int, Sequence[ShardEntry]]:
    """Return the shards of the pieces that an interrupted call finished, if they all exist."""
    prefix = f"{NOTE_PREFIX}{work.plan}-"
    names = _notes(work.store, prefix)
    found: dict[int, Sequence[ShardEntry]] = {}
    source: dict[int, str] = {}
    if not names:
        return found
    sizes = _shard_sizes(work.store)
    for name in names:
        number = name.removeprefix(prefix).partition("-")[0]
        piece = pieces[int(number)] if number.isdecimal() and int(number) < len(pieces) else None
        entries = _read_note(work.store, name)
        if piece is not None and entries and _is_of(piece, entries, work, sizes):
            found[piece.number] = entries
            source[piece.number] = name
    for taken, shards in found.items():
        work.note(taken, shards)
    still = set(_notes(work.store, prefix))  # only now: see `headrace.storage.care.entry_notes`
    return {taken: found[taken] for taken, name in source.items() if name in still}


def _notes(store: Store, prefix: str) -> list[str]:
    return sorted(name for name in store.list(f"{MANIFEST_FOLDER}/") if name.startswith(prefix))


def _read_note(store: Store, name: str) -> list[ShardEntry] | None:
    try:
        return decode_entries(store.read(name))
    except ObjectNotFoundError:
        return None


def _is_of(
    piece: _Piece, entries: Sequence[ShardEntry], work: _Work, sizes: Mapping[str, int]
) -> bool:
    """Return whether shards of a note exist and are those of a piece."""
    columns = len(work.manifest.stored_schema)
    return (
        _are_there(entries, sizes)
        and all(len(entry.columns) == columns for entry in entries)
        and sum(entry.sample_count for entry in entries) == piece.sample_count
    )


def _are_there(entries: Sequence[ShardEntry], sizes: Mapping[str, int]) -> bool:
    return all(sizes.get(entry.name) == entry.stored_bytes for entry in entries)


def _shard_sizes(store: Store) -> dict[str, int]:
    """Return the stored bytes of all shards."""
    folder = f"{SHARD_FOLDER}/"
    return {
        entry.name.removeprefix(folder): entry.stored_bytes for entry in store.list_entries(folder)
    }


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
