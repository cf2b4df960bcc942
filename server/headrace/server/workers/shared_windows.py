"""The windows that workers have open, each once: their ranks read the same pieces.

Contract:

1. Windows are told apart by what they hold: the same samples of the same blocks are one window,
   whichever worker and job it is of. So workers that cut an epoch in different ways, for the moment
   in which one knows of a job and another does not yet, read more, and never another's samples.
2. A window lives as long as a worker has it open. Its table is never given to another window: a
   worker that still looks into it finds nothing.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.memory.shared_memory import Shared, WindowTables
from headrace.server.cache.pieces import Pieces
from headrace.server.cache.source import Source


@dataclass(slots=True, eq=False)
class SharedWindow:
    """One window.

    Attributes:
        key: A digest of what it holds.
        number: Its number in the cache.
        sources: Its pieces of each dataset.
        memory: The memory of its tables, for workers.
        tables: Its tables.
        users: Workers that have it open, once for each time they opened it.
    """

    key: bytes
    number: int
    sources: tuple[Source, ...]
    memory: Shared
    tables: WindowTables
    users: int = 0


class SharedWindows:
    """Open windows for workers. Safe for several threads.

    Args:
        cache: The cache that stores their pieces.
    """

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._open: dict[bytes, SharedWindow] = {}

    def take(self, members: Sequence[tuple[Source, Pieces]]) -> SharedWindow:
        """Return the window with some pieces of each dataset; `give_back` must follow.

        Raises:
            ConfigurationError: The system has no memory that can be shared.
            OSError: No more files can be opened.
        """
        key = _key(members)
        with self._lock:
            window = self._open.get(key)
            if window is None:
                window = self._open[key] = self._opened(key, members)
            window.users += 1
            return window

    def give_back(self, window: SharedWindow) -> None:
        """Undo one `take`; a window that no worker has open is over."""
        with self._lock:
            window.users -= 1
            if window.users:
                return
            del self._open[window.key]
        self._cache.end_window(window.number)
        self._cache.free_windows()
        window.tables.is_over[0] = 1
        window.memory.close()

    def _opened(self, key: bytes, members: Sequence[tuple[Source, Pieces]]) -> SharedWindow:
        counts = [whole.slot_of.size for whole, _ in members]
        memory = Shared.create("headrace-window", WindowTables.size(counts))
        try:
            tables = WindowTables(memory.map(), counts)
            memory.seal()
            number, sources = self._cache.open_window(members, tables.slots_of)
        except BaseException:
            memory.close()
            raise
        return SharedWindow(key, number, tuple(sources), memory, tables)


def _key(members: Sequence[tuple[Source, Pieces]]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for whole, pieces in members:
        digest.update(f"{whole.index} {pieces.blocks.size} {pieces.places.size} ".encode())
        for part in (pieces.blocks, pieces.firsts, pieces.places):
            digest.update(part.data)
    return digest.digest()
