"""The datasets that a supervisor reads for its workers, each opened once."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.memory.shared_memory import Shared, SourceTables
from headrace.server.cache.read_observer import ReadObserver
from headrace.server.cache.source import Source
from headrace.server.datasets.cached_blocks import add_blocks
from headrace.server.datasets.open_served import open_one
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import split_schema
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.storage import OpenDataset


@dataclass(slots=True, eq=False)
class SharedSource:
    """One dataset.

    Attributes:
        key: The settings and version with which it was opened.
        dataset: The dataset.
        source: Its blocks in the cache.
        tables: The places of the blocks, for workers.
        users: Workers that have it open, once for each time they opened it.
    """

    key: bytes
    dataset: OpenDataset
    source: Source
    tables: Shared
    users: int = 0


class SharedSources:
    """Open datasets for workers. Safe for several threads.

    Args:
        cache: The cache that stores their blocks.
        capacity: The number of slots of the cache.
        observers: Are told about reads.
    """

    def __init__(
        self, cache: BlockCache, *, capacity: int, observers: Sequence[ReadObserver]
    ) -> None:
        self._observers = observers
        self._cache = cache
        self._capacity = capacity
        self._lock = threading.Lock()
        self._open: dict[bytes, SharedSource] = {}

    def take(self, name: str, config: DatasetConfig, fingerprint: str) -> SharedSource:
        """Return a version of a dataset; `give_back` must follow.

        Args:
            name: Its name in metrics, if it is not open yet.
            config: The settings with which it is opened.
            fingerprint: The fingerprint of the version.

        Raises:
            HeadraceError: It cannot be opened.
        """
        key = pickle.dumps((config, fingerprint))
        # One at a time: all workers start together and open the same datasets.
        with self._lock:
            shared = self._open.get(key)
            if shared is None:
                shared = self._open[key] = self._opened(key, name, config, fingerprint)
            shared.users += 1
            return shared

    def give_back(self, shared: SharedSource) -> None:
        """Undo one `take`; a dataset that no worker has open is closed."""
        with self._lock:
            shared.users -= 1
            if shared.users:
                return
            del self._open[shared.key]
        self._cache.remove_source(shared.source)
        shared.dataset.close()
        shared.tables.close()

    def _opened(
        self, key: bytes, name: str, config: DatasetConfig, fingerprint: str
    ) -> SharedSource:
        with ExitStack() as opened:
            dataset = open_one(config, fingerprint)
            opened.callback(dataset.close)
            columns, _ = split_schema(dataset.schema, item_nulls=bool(config.item_nulls))
            layout = block_layout(columns)
            counts = {"block_count": dataset.block_count, "part_count": len(layout.parts)}
            tables = Shared.create(
                "headrace-tables", SourceTables.size(**counts, capacity=self._capacity)
            )
            opened.callback(tables.close)
            places = SourceTables.lie_in(tables.map(), **counts)
            tables.seal()
            source = add_blocks(
                self._cache,
                name,
                dataset,
                layout,
                config=config,
                observers=self._observers,
                tables=places,
            )
            opened.pop_all()
        return SharedSource(key, dataset, source, tables)
