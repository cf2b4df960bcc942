"""Small datasets, written by the real writer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.storage import Manifest, ShardWriter, commit_dataset, open_store


def write_dataset(
    url: str, table: pa.Table, *, shard_samples: Sequence[int], block_bytes: int = 2048
) -> Manifest:
    """Write a table as one dataset.

    Args:
        url: Where to.
        table: The samples, in storage order.
        shard_samples: Samples of each shard; together the table's rows.
        block_bytes: Small, so that small datasets have many blocks.
    """
    store = open_store(url)
    entries = []
    begin = 0
    for number, count in enumerate(shard_samples):
        writer = ShardWriter(
            store, f"part-{number:05d}.arrow", schema=table.schema, block_bytes=block_bytes
        )
        for batch in table.slice(begin, count).to_batches():
            writer.append(batch)
        entries.append(writer.close())
        begin += count
    assert begin == table.num_rows
    return commit_dataset(store, table.schema, entries)


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
