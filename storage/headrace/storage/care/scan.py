"""Read and check the blocks of a shard, with or without a block table."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import ShardCorruptError
from headrace.storage.shard.arrow_message import message_size
from headrace.storage.shard.block import (
    BLOCK_DTYPE,
    MAX_BLOCK_BYTES,
    BlockPlace,
    checksum_of,
    decode_block,
)
from headrace.storage.shard.column_facts import ColumnStats, stats_of
from headrace.storage.shard.decoder import BlockDecoder
from headrace.storage.shard.fingerprint import page_digest
from headrace.storage.shard.sample_bytes import sample_bytes
from headrace.storage.shard.shard_writer import ShardEntry

_MAGIC_BYTES = 8


@dataclass(frozen=True, slots=True)
class Lost:
    """Samples that can no longer be read.

    Attributes:
        shard: Name of their shard.
        block: Ordinal of their block in the shard, or `None` for the whole shard.
        sample_count: Number of samples, or `None` if it is not known.
        message: What was found.
    """

    shard: str
    block: int | None
    sample_count: int | None
    message: str


@dataclass(frozen=True, slots=True)
class ScannedShard:
    """The content of a shard.

    Attributes:
        entry: The shard's entry for a manifest; `None` if no block can be read.
        schema: The columns of its blocks, or `None` if they cannot be read.
        lost: The samples that cannot be read.
    """

    entry: ShardEntry | None
    schema: pa.Schema | None
    lost: tuple[Lost, ...]


def scan_shard(content: bytes, *, name: str) -> ScannedShard:
    """Read a whole shard without a block table.

    Args:
        content: The bytes of the file.
        name: The name of the shard.

    Raises:
        ShardCorruptError: A part of it is damaged, its end is missing, or it has no samples.
    """
    try:
        schema, offsets = _messages(content)
        _check_end(content, len(offsets) - 1)
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise _damage(name, f"not an Arrow IPC file: {error}") from error
    decoder = BlockDecoder(schema)
    rows = np.zeros(len(offsets) - 1, BLOCK_DTYPE)
    stats = []
    for block, (start, stop) in enumerate(itertools.pairwise(offsets)):
        rows[block] = _row(content[start:stop], start, name=name, decoder=decoder)
        stats.append(_verified(content, rows[block], block, name=name, decoder=decoder))
    if not len(rows):
        raise _damage(name, "it contains no blocks")
    return ScannedShard(_entry(name, content, rows, stats), schema, ())


def verify_shard(
    content: bytes, *, name: str, rows: NDArray[np.void], schema: pa.Schema
) -> ScannedShard:
    """Return the parts of a shard that match its block table.

    The digests of a block table do not cover the places of blocks. So if blocks are not where the
    table says, the shard is searched for them from its start.

    Args:
        content: The bytes of the file, or what is left of them.
        name: The name of the shard.
        rows: ``(blocks,)`` of `BLOCK_DTYPE`.
        schema: The schema that shards of the dataset were written with.
    """
    decoder = BlockDecoder(schema)
    stats, good, lost = [], [], []
    for block, row in enumerate(rows):
        try:
            stats.append(_verified(content, row, block, name=name, decoder=decoder))
            good.append(block)
        except ShardCorruptError as error:
            lost.append(Lost(name, block, int(row["sample_count"]), error.message))
    if lost:
        found = _found_elsewhere(content, name=name, rows=rows)
        if found is not None:
            return found
    entry = _entry(name, content, rows[good], stats) if good else None
    return ScannedShard(entry, schema, tuple(lost))


def _found_elsewhere(content: bytes, *, name: str, rows: NDArray[np.void]) -> ScannedShard | None:
    try:
        found = scan_shard(content, name=name)
    except ShardCorruptError:
        return None
    assert found.entry is not None
    is_same = page_digest(found.entry.blocks) == page_digest(rows)
    return found if is_same else None


def of_another_schema(shard: ScannedShard, schema: pa.Schema) -> ScannedShard:
    """Mark a shard as lost because its columns differ from ``schema``."""
    assert shard.entry is not None
    message = f"it has columns {shard.schema}, but the other shards have {schema}"
    lost = Lost(shard.entry.name, None, shard.entry.sample_count, " ".join(message.split()))
    return replace(shard, entry=None, lost=(*shard.lost, lost))


def _messages(content: bytes) -> tuple[pa.Schema, list[int]]:
    """Return the schema, where each block starts, and where the last one ends."""
    source = pa.BufferReader(content)
    source.seek(_MAGIC_BYTES)
    schema = pa.ipc.read_schema(pa.ipc.read_message(source))
    return schema, [source.tell(), *_ends(source)]


def _ends(source: pa.BufferReader) -> Iterator[int]:
    while True:
        try:
            message = pa.ipc.read_message(source)
        except EOFError:  # raised by Arrow for the end-of-stream marker
            return
        if message.type != "record batch":
            raise ValueError(f"{message.type} found, record batch expected")
        yield source.tell()


def _check_end(content: bytes, block_count: int) -> None:
    stated = pa.ipc.open_file(pa.py_buffer(content)).num_record_batches
    if stated != block_count:
        raise ValueError(f"{block_count} blocks found, but its footer says {stated}")


def _row(
    stored: bytes, offset: int, *, name: str, decoder: BlockDecoder
) -> tuple[int, int, int, int, int]:
    try:
        size = message_size(pa.ipc.read_message(pa.py_buffer(stored)))
        if max(size.decoded_bytes, len(stored)) > MAX_BLOCK_BYTES:
            raise ValueError(f"its {size.decoded_bytes} bytes are too many")  # noqa: TRY301 - as other errors
        batch = decoder.decode(stored)
        raw_bytes = int(sample_bytes(batch).sum())
    except (pa.ArrowException, EOFError, OSError, ValueError, IndexError) as error:
        raise _damage(name, f"no block at byte {offset}: {error}") from error
    if not batch.num_rows:
        raise _damage(name, f"the block at byte {offset} has no samples")
    return offset, len(stored), batch.num_rows, raw_bytes, checksum_of(stored)


def _verified(
    content: bytes, row: np.void, block: int, *, name: str, decoder: BlockDecoder
) -> list[ColumnStats]:
    place = BlockPlace.of_row(row, shard=name, block=block)
    stored = content[place.offset : place.offset + place.stored_bytes]
    batch = decode_block(stored, place, decoder=decoder)
    return [stats_of(column) for column in batch.columns]


def _entry(
    name: str, content: bytes, rows: NDArray[np.void], stats: list[list[ColumnStats]]
) -> ShardEntry:
    columns = tuple(
        functools.reduce(ColumnStats.merged, column) for column in zip(*stats, strict=True)
    )
    return ShardEntry(name=name, stored_bytes=len(content), blocks=rows, columns=columns)


def _damage(name: str, found: str) -> ShardCorruptError:
    return ShardCorruptError(f"shard {name}: {found}", shard=name)
