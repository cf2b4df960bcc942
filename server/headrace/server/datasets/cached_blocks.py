"""Put the blocks of a dataset into a cache: all readers between its store and memory."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.disk.disk_blocks import DiskBlocks
from headrace.server.cache.fetch.block_runs import store_of
from headrace.server.cache.flat_blocks import FlatBlocks
from headrace.server.cache.memory.shared_memory import SourceTables
from headrace.server.cache.read_observer import ReadObserver, WatchedBlocks
from headrace.server.cache.source import Source
from headrace.server.layout.block_layout import BlockLayout
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.storage import OpenDataset


def memory_bytes_of(dataset: OpenDataset, layout: BlockLayout) -> int:
    """Return the bytes in memory of all blocks of a dataset, approximately."""
    return layout.memory_bytes(
        dataset.sample_count, dataset.raw_bytes, block_count=dataset.block_count
    )


def add_blocks(
    cache: BlockCache,
    name: str,
    dataset: OpenDataset,
    layout: BlockLayout,
    *,
    config: DatasetConfig | None = None,
    observers: Sequence[ReadObserver] = (),
    tables: SourceTables | None = None,
) -> Source:
    """Add the blocks of a dataset to a cache.

    Args:
        cache: The cache.
        name: The name of the dataset in reports.
        dataset: The dataset.
        layout: The layout of its blocks in memory.
        config: The settings with which it was opened, if known.
        observers: Receive reports of each read.
        tables: Tables for the places of blocks, which workers share; None for new ones.
    """
    disk = cache.disk
    reader = FlatBlocks(
        dataset if disk is None else DiskBlocks(dataset, disk),
        item_nulls=config is not None and bool(config.item_nulls),
    )
    return cache.add_source(
        WatchedBlocks(name, reader, observers),
        layout,
        block_count=dataset.block_count,
        memory_bytes=memory_bytes_of(dataset, layout),
        fingerprint=dataset.fingerprint,
        tables=tables,
        origin=None if config is None else (name, config, dataset.fingerprint),
        store=store_of(dataset.url),
    )
