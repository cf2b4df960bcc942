"""Write the shards of a compaction, and use those that an interrupted one has finished.

Contract:

1. Finished shards stay in the store, each with a note of its contents. A damaged note, or one whose
   shard is missing or has another size, is ignored.
2. Shards that are taken get a new note, so `headrace gc` spares them however old they are
   (`headrace.storage.care.entry_notes`).
3. Before `written_shards` returns, it lists all shards, and writes missing ones again.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CommitConflictError, InternalError, ObjectNotFoundError
from headrace.storage.care.entry_notes import NOTE_PREFIX, decode_entries, encode_entries
from headrace.storage.dataset.block_stream import stream_blocks
from headrace.storage.dataset.manifest import Manifest
from headrace.storage.dataset.pointer import MANIFEST_FOLDER
from headrace.storage.shard.block import BlockPlace
from headrace.storage.shard.shard_series import ShardSeries, ShardSizes
from headrace.storage.shard.shard_writer import SHARD_FOLDER, ShardEntry
from headrace.storage.store.store import Store

_ROUNDS = 3  # of writing missing shards; more would mean that something keeps removing them


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


def _new_attempt() -> str:
    return uuid.uuid4().hex[:8]


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring blocks that become one shard: ordinals ``[first, stop)``."""

    number: int
    first: int
    stop: int
    sample_count: int
    raw_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The facts that all threads of a compaction share.

    Attributes:
        store: The store of the dataset.
        manifest: The version that is rewritten.
        rows: Its blocks.
        sizes_for: Returns how to cut samples of a number of raw bytes.
        plan: The digits that the names of all its shards share.
        attempt: The digits that differ between attempts.
    """

    store: Store
    manifest: Manifest
    rows: NDArray[np.void]
    sizes_for: Callable[[int], ShardSizes]
    plan: str
    attempt: str = field(default_factory=_new_attempt)

    def places(self, piece: Piece) -> Iterator[BlockPlace]:
        """Yield the places of the blocks of a piece."""
        ends = np.cumsum(self.manifest.block_counts)
        for block in range(piece.first, piece.stop):
            shard = int(np.searchsorted(ends, block, side="right"))
            name = f"{SHARD_FOLDER}/{self.manifest.names[shard].as_py()}"
            yield BlockPlace.of_row(self.rows[block], shard=name, block=block)

    def name_of(self, piece: Piece, number: int) -> str:
        """Return the name of a shard of a piece, which usually has one; names sort like samples."""
        return f"{piece.number:05d}-{number:04d}-{self.plan}{self.attempt}.arrow"

    def note(self, number: int, entries: Sequence[ShardEntry]) -> None:
        """Store a note of the shards of a piece."""
        name = f"{NOTE_PREFIX}{self.plan}-{number:05d}-{self.attempt}"
        self.store.write(name, encode_entries(entries))


def written_shards(
    work: Work,
    pieces: Sequence[Piece],
    *,
    threads: int,
    progress: Callable[[Compaction], None] | None,
) -> tuple[list[ShardEntry], int]:
    """Write all missing pieces; return all shards, and how many existed already."""
    made = _reusable(work, pieces)
    taken = dict(made)
    total_bytes = sum(piece.raw_bytes for piece in pieces)

    def taken_count() -> int:
        return sum(len(taken[number]) for number in taken if made.get(number) is taken[number])

    def report() -> None:
        if progress is not None:
            done_bytes = sum(pieces[number].raw_bytes for number in made)
            progress(Compaction(len(made), taken_count(), len(pieces), done_bytes, total_bytes))

    report()
    for _ in range(_ROUNDS):
        left = [piece for piece in pieces if piece.number not in made]
        _write_pieces(work, left, made, threads=threads, report=report)
        incomplete = _incomplete(work, made)
        if not incomplete:
            return [entry for piece in pieces for entry in made[piece.number]], taken_count()
        for number in incomplete:
            del made[number]
        work = replace(work, attempt=_new_attempt())
    raise CommitConflictError(
        f"finished shards in {work.store.url} were removed before they could be committed; nothing "
        "was changed: give `headrace gc` a longer --older-than, and try again",
        url=work.store.url,
    )


def _write_pieces(
    work: Work,
    pieces: Iterable[Piece],
    made: dict[int, Sequence[ShardEntry]],
    *,
    threads: int,
    report: Callable[[], None],
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
                report()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _incomplete(work: Work, made: Mapping[int, Sequence[ShardEntry]]) -> list[int]:
    """Return the pieces with a shard that is no longer in the store."""
    sizes = _shard_sizes(work.store)
    return [number for number, entries in made.items() if not _exist(entries, sizes)]


def _write(work: Work, piece: Piece, stop: threading.Event) -> Sequence[ShardEntry]:
    """Write the shards of a piece, and a note that they are finished."""
    series = ShardSeries(
        work.store,
        work.manifest.stored_schema,
        work.sizes_for(piece.raw_bytes),
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


def _refuse_difference(work: Work, piece: Piece, made: Sequence[ShardEntry]) -> None:
    samples = sum(entry.sample_count for entry in made)
    raw_bytes = sum(entry.raw_bytes for entry in made)
    if (samples, raw_bytes) != (piece.sample_count, piece.raw_bytes):
        raise InternalError(
            f"compacting blocks {piece.first} to {piece.stop - 1} of {work.store.url} wrote "
            f"{samples} samples of {raw_bytes} bytes, expected {piece.sample_count} of "
            f"{piece.raw_bytes}; nothing was committed: please report this"
        )


def _reusable(work: Work, pieces: Sequence[Piece]) -> dict[int, Sequence[ShardEntry]]:
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
        if piece is not None and entries and _is_note_of(piece, entries, work, sizes):
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


def _is_note_of(
    piece: Piece, entries: Sequence[ShardEntry], work: Work, sizes: Mapping[str, int]
) -> bool:
    """Return whether shards of a note exist and are those of a piece."""
    columns = len(work.manifest.stored_schema)
    return (
        _exist(entries, sizes)
        and all(len(entry.columns) == columns for entry in entries)
        and sum(entry.sample_count for entry in entries) == piece.sample_count
    )


def _exist(entries: Sequence[ShardEntry], sizes: Mapping[str, int]) -> bool:
    return all(sizes.get(entry.name) == entry.stored_bytes for entry in entries)


def _shard_sizes(store: Store) -> dict[str, int]:
    """Return the stored bytes of all shards."""
    folder = f"{SHARD_FOLDER}/"
    return {
        entry.name.removeprefix(folder): entry.stored_bytes for entry in store.list_entries(folder)
    }
