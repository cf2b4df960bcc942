"""Wait for blocks of several datasets of one cache, one dataset after the other.

Those of the others, which the stream requested ahead of need, arrive meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.readers import StreamCache, Waiter
from headrace.server.cache.source import Source

Demand: TypeAlias = "tuple[Source, int, NDArray[np.int64]]"
"""A dataset, the number of its block 0, and its blocks."""


class DemandsInTurn:
    """The demands of one stream; not thread-safe.

    Args:
        cache: The cache.
    """

    def __init__(self, cache: StreamCache) -> None:
        self._cache = cache
        self._queue: deque[Demand] = deque()
        self._current = ExitStack()
        self._source: Source | None = None
        self._first = self._left = 0

    @contextmanager
    def demanded(self, demands: Iterable[Demand], waiter: Waiter) -> Iterator[None]:
        """Fetch blocks; `arrivals` returns their numbers while the context lasts."""
        del waiter  # `arrivals`, which has it too, asks for the blocks
        self._queue.extend(demands)
        self._left = 0
        try:
            yield
        finally:
            self._queue.clear()
            self._current.close()

    def arrivals(self, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        """Wait for demanded blocks; return those that arrived, pinned until the next call."""
        if not self._left and self._queue:
            self._current.close()
            self._source, self._first, own = self._queue.popleft()
            self._left = own.size
            self._current.enter_context(self._cache.demand(self._source, own, waiter))
        assert self._source is not None
        arrived = self._cache.arrivals(self._source, waiter, timeout_s=timeout_s)
        self._left -= arrived.size
        numbered: NDArray[np.int64] = arrived + self._first
        return numbered
