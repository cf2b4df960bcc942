"""Write shards and datasets whose blocks, codecs and commits a test wants to choose."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.storage import (
    Compression,
    Manifest,
    Mode,
    ShardEntry,
    ShardWriter,
    Store,
    StoreOptions,
    commit_dataset,
    open_store,
)
from headrace.storage.dataset.pointer import Pointer
from headrace.storage.dataset.read_manifest import read_any_pointer, shards_pointer


def write_shard(
    store: Store,
    name: str,
    batches: Sequence[pa.RecordBatch],
    *,
    compression: Compression = "lz4",
    block_bytes: int = 1024,
) -> ShardEntry:
    """Write ``batches`` as one shard, in small blocks."""
    schema = batches[0].schema
    with ShardWriter(
        store, name, schema=schema, compression=compression, block_bytes=block_bytes
    ) as writer:
        for batch in batches:
            writer.append(batch)
        return writer.close()


def write_shards_of(
    url: str,
    shards: Sequence[pa.RecordBatch],
    *,
    options: StoreOptions | None = None,
    compression: Compression = "lz4",
    block_bytes: int = 1024,
    mode: Mode = "error",
    stem: str = "shard",
) -> Manifest:
    """Write each of ``shards`` as one shard and commit them.

    Args:
        url: Where.
        shards: All of one schema.
        options: How to reach the store.
        compression: Of the blocks.
        block_bytes: Raw bytes of a block.
        mode: As `commit_dataset` has it.
        stem: How names of shards begin; give another one to append.
    """
    store = open_store(url, options=options)
    try:
        entries = [
            write_shard(
                store,
                f"{stem}-{index:05d}.arrow",
                [batch],
                compression=compression,
                block_bytes=block_bytes,
            )
            for index, batch in enumerate(shards)
        ]
        return commit_dataset(store, shards[0].schema, entries, mode=mode)
    finally:
        store.close()


def numbered_batch(start: int, stop: int) -> pa.RecordBatch:
    """Return samples whose every column follows from their number in ``[start, stop)``."""
    numbers = range(start, stop)
    return pa.RecordBatch.from_pydict(
        {
            "number": list(numbers),
            "name": [f"sample {number}" * (number % 5) for number in numbers],
            "blob": [bytes([number % 256]) * (number % 7) for number in numbers],
            "flag": [number % 3 == 0 for number in numbers],
            "maybe": [None if number % 4 == 0 else number / 2 for number in numbers],
            "image": [[float(number + pixel) for pixel in range(4)] for number in numbers],
            "tokens": [list(range(number % 6)) for number in numbers],
        },
        schema=pa.schema(_NUMBERED),
    )


_NUMBERED: dict[str, pa.DataType] = {
    "number": pa.int64(),
    "name": pa.string(),
    "blob": pa.binary(),
    "flag": pa.bool_(),
    "maybe": pa.float64(),
    "image": pa.list_(pa.field("item", pa.float32(), nullable=False), 4),
    "tokens": pa.list_(pa.field("item", pa.int32(), nullable=False)),
}


def pointer_of(store: Store) -> Pointer:
    """Return what ``headrace.json`` of a dataset of our own shards says."""
    return shards_pointer(read_any_pointer(store)[0], store.url)
