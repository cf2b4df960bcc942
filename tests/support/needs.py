"""What a job needs of a server's cache, counted as blocks lie in it."""

from __future__ import annotations

from headrace.server.cache.needs import needed_bytes
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import split_schema
from headrace.storage import open_dataset


def needed_cache(url: str, *, shuffle_bytes: int) -> int:
    """Return the bytes of cache that a job needs which shuffles so many raw bytes together."""
    with open_dataset(url) as dataset:
        columns, _ = split_schema(dataset.schema)
        data_bytes = block_layout(columns).memory_bytes(
            dataset.sample_count, dataset.raw_bytes, block_count=dataset.block_count
        )
        share = min(1.0, shuffle_bytes / dataset.raw_bytes)
    return needed_bytes(int(data_bytes * share), data_bytes)
