"""The blocks that one stream reads: how it asks the cache for them, whatever holds them."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.gather import Rows
from headrace.server.cache.source import Source, Waiter
from headrace.server.layout.block_layout import BlockLayout
from headrace.storage import OpenDataset


class Blocks(Protocol):
    """What a stream needs of the cache; `headrace.server.cache.block_cache` holds the contract."""

    @property
    def layout(self) -> BlockLayout:
        """How the samples lie in the rows that `rows` returns."""

    def waiter(self, job: Hashable = None) -> Waiter:
        """Return the stream's handle; streams of equal jobs read the same at about one time."""

    def leave(self, waiter: Waiter) -> None:
        """Forget the stream; it has ended."""

    def stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the size of blocks in the store."""

    def is_cached(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks are in memory just now."""

    def lease(self, blocks: NDArray[np.int64]) -> AbstractContextManager[bool]:
        """Pin distinct blocks while the context lasts, all or none; say which."""

    def prefetch(self, blocks: NDArray[np.int64], waiter: Waiter) -> NDArray[np.int64]:
        """Ask for blocks ahead of need; return those that were not there or on their way."""

    def demand(self, blocks: NDArray[np.int64], waiter: Waiter) -> AbstractContextManager[None]:
        """Fetch blocks, which `arrivals` hands out while the context lasts."""

    def arrivals(self, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        """Wait for demanded blocks; return those that came, pinned until the next call."""

    def rows(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> Rows:
        """Return samples that lie in pinned blocks."""


class DatasetBlocks:
    """The blocks of one dataset.

    Args:
        cache: Holds them.
        source: The dataset in the cache.
        dataset: The dataset.
    """

    def __init__(self, cache: BlockCache, source: Source, dataset: OpenDataset) -> None:
        self._cache = cache
        self._source = source
        self._dataset = dataset

    @property
    def layout(self) -> BlockLayout:
        return self._source.layout

    def waiter(self, job: Hashable = None) -> Waiter:
        return self._cache.waiter((self._source.index, job))

    def leave(self, waiter: Waiter) -> None:
        self._cache.leave(waiter)

    def stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._dataset.block_stored_bytes(blocks)

    def is_cached(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._cache.is_cached(self._source, blocks)

    def lease(self, blocks: NDArray[np.int64]) -> AbstractContextManager[bool]:
        return self._cache.lease(self._source, blocks)

    def prefetch(self, blocks: NDArray[np.int64], waiter: Waiter) -> NDArray[np.int64]:
        return self._cache.prefetch(self._source, blocks, waiter)

    def demand(self, blocks: NDArray[np.int64], waiter: Waiter) -> AbstractContextManager[None]:
        return self._cache.demand(self._source, blocks, waiter)

    def arrivals(self, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        return self._cache.arrivals(self._source, waiter, timeout_s=timeout_s)

    def rows(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> Rows:
        return self._cache.rows(self._source, blocks, offsets)
