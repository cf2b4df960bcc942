"""Small datasets, written by the real writer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage import (
    BLOCK_DTYPE,
    ColumnStats,
    Manifest,
    Mode,
    ShardEntry,
    ShardWriter,
    commit_dataset,
    open_store,
)


def write_dataset(
    url: str,
    table: pa.Table,
    *,
    shard_samples: Sequence[int],
    block_bytes: int = 2048,
    mode: Mode = "error",
) -> Manifest:
    """Write a table as one dataset.

    Args:
        url: Where to.
        table: The samples, in storage order.
        shard_samples: Samples of each shard; together the table's rows.
        block_bytes: Small, so that small datasets have many blocks.
        mode: What becomes of a dataset that is there.
    """
    store = open_store(url)
    entries = []
    start = 0
    # Shards of other versions stay.
    part = "part" if mode == "error" else f"part-{mode}"
    for number, count in enumerate(shard_samples):
        writer = ShardWriter(
            store, f"{part}-{number:05d}.arrow", schema=table.schema, block_bytes=block_bytes
        )
        for batch in table.slice(start, count).to_batches():
            writer.append(batch)
        entries.append(writer.close())
        start += count
    assert start == table.num_rows
    return commit_dataset(store, table.schema, entries, mode=mode)


def write_manifest(
    url: str, sample_counts: NDArray[np.int64], raw_bytes: NDArray[np.int64], *, stored_bytes: int
) -> Manifest:
    """Write the manifest of a dataset of one column whose shards are not there.

    Args:
        url: Where to.
        sample_counts: ``(shards, blocks)``: samples of each block.
        raw_bytes: ``(shards, blocks)``: their bytes.
        stored_bytes: Of each block.
    """
    random = np.random.default_rng(0)
    shard_count, block_count = sample_counts.shape
    entries = []
    for number in range(shard_count):
        rows = np.zeros(block_count, BLOCK_DTYPE)
        rows["offset"] = np.arange(block_count) * stored_bytes
        rows["stored_bytes"] = stored_bytes
        rows["sample_count"], rows["raw_bytes"] = sample_counts[number], raw_bytes[number]
        rows["checksum"] = random.integers(0, 2**63, block_count, np.uint64)
        name, size = f"part-{number:05d}.arrow", block_count * stored_bytes
        entries.append(ShardEntry(name, size, rows, (ColumnStats(),)))
    schema = pa.schema([pa.field("number", pa.int64(), nullable=False)])
    return commit_dataset(open_store(url), schema, entries)


def write_rows(url: str, *, sample_count: int, width: int) -> None:
    """Write rows of float32 that count on, as ``x``, in four shards of blocks of 256 KiB.

    Args:
        url: Where to.
        sample_count: A multiple of four.
        width: Numbers a row.
    """
    flat = pa.array(np.arange(sample_count * width, dtype=np.float32))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, width)})
    write_dataset(url, table, shard_samples=[sample_count // 4] * 4, block_bytes=1 << 18)


def small_table(sample_count: int) -> pa.Table:
    """Make a table with a column of each common kind; ``number`` is the sample's id."""
    ids = np.arange(sample_count)
    return pa.table(
        {
            "number": pa.array(ids, pa.int64()),
            "ratio": pa.array(ids / 7, pa.float32()),
            "name": pa.array([f"sample {i}" * (i % 3) for i in ids]),
            "blob": pa.array([bytes([i % 256]) * (i % 5) for i in ids]),
            "even": pa.array(ids % 2 == 0),
            "grid": pa.FixedSizeListArray.from_arrays(
                pa.array(np.repeat(ids, 4).astype(np.int16)), 4
            ),
        }
    )
