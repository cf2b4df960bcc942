"""Windows: stretches of an epoch, for which blocks that do not fit into the cache are read once.

A job whose shuffle does not fit into its part of the cache would read most blocks for each of their
samples. Instead, its epoch is cut into windows. Some blocks are kept whole; of each other one that
a window needs, only the samples of this window are kept: a *piece*. The policy is that of
`headrace.server.plan.window_finder`; here is what the cache needs to know.

Contract:

1. A window is a dataset of pieces in the cache for each dataset that it reads: the piece of block b
   is its block b, and counts as memory of the cache like any other.
2. Blocks and pieces of several datasets, end to end, share one sequence of numbers. Those of a
   window are never given to another.
3. A window lives as long as something that was found with it; then its pieces are freed. Its number
   is unknown from then on, as if the pieces were not cached.
4. Pieces leave the cache with their dataset, which waits for running reads of them.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.joined_sources import split_by
from headrace.server.cache.pieces import Pieces
from headrace.server.cache.source import ABSENT, IN_FLIGHT, Source


class Window:
    """The pieces that a stretch of an epoch needs; `Windows.add` makes one.

    Attributes:
        number: Its number in the cache.
        first: The number of the piece of block 0.
        sources: Its pieces in the cache, by the index of their dataset.
    """

    __slots__ = ("__weakref__", "first", "number", "sources")

    def __init__(self, number: int, first: int, sources: Mapping[int, Source]) -> None:
        self.number = number
        self.first = first
        self.sources = sources


class Windows:
    """The windows of all jobs that read a dataset, or a mixture of several; thread-safe.

    Attributes:
        stride: Block b of the datasets has number b, and a piece of it b plus a multiple of this.

    Args:
        cache: The cache.
        wholes: The datasets in the cache.
        first_blocks: ``(datasets + 1,) int64``: the number of each dataset's first block, and the
            end.
    """

    slot_of: None = None
    """None, because each window has its own tables."""

    def __init__(
        self, cache: BlockCache, wholes: Sequence[Source], first_blocks: NDArray[np.int64]
    ) -> None:
        # A number lies between two windows, so that no read brings blocks of both.
        self.stride = int(first_blocks[-1]) + 1
        self._cache = cache
        self._wholes = tuple(wholes)
        self._firsts = first_blocks
        self._lock = threading.Lock()
        self._count = 0
        self._alive: WeakValueDictionary[int, Window] = WeakValueDictionary()

    def add(self, pieces: Pieces) -> Window:
        """Add a window of pieces.

        Raises:
            HeadraceError: The cache does not take them.
        """
        self.free()
        owners, members = [], []
        for index, where, own in split_by(self._firsts, pieces.blocks):
            owners.append(index)
            members.append((self._wholes[index], pieces.of(where, own)))
        number, sources = self._cache.open_window(members)
        with self._lock:
            self._count += 1
            first = self._count * self.stride
            window = Window(number, first, dict(zip(owners, sources, strict=True)))
            self._alive[self._count] = window
        # Garbage is collected while any lock may be held, so pieces are freed at the next occasion.
        weakref.finalize(window, self._cache.end_window, number).atexit = False
        return window

    def is_used(self, number: int) -> bool:
        """Return whether a stream, of any process, still uses the window with this number."""
        return self._cache.is_window_used(number)

    def free(self) -> None:
        """Free the pieces of windows that are over."""
        self._cache.free_windows()

    def split(
        self, numbers: NDArray[np.int64]
    ) -> Iterator[tuple[Source | None, int, NDArray[np.intp], NDArray[np.int64]]]:
        """Split numbers by what they are blocks or pieces of.

        Yields:
            A dataset or its pieces in the cache, None for a window that is over; the number of its
            block 0; the indices of its numbers, and these numbers as blocks.
        """
        owners = numbers // self.stride
        for owner in np.unique(owners).tolist():
            places = np.flatnonzero(owners == owner)
            window = self._alive.get(owner) if owner else None
            first = owner * self.stride
            for index, where, own in split_by(self._firsts, numbers[places] - first):
                source = self._wholes[index] if not owner else None
                if window is not None:
                    source = window.sources.get(index)
                yield source, first + int(self._firsts[index]), places[where], own

    def slots(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the slot of each block or piece; 0 or less if it is not cached."""
        slots = np.full(numbers.size, ABSENT, np.int32)
        for source, _, places, own in self.split(numbers):
            if source is not None:
                slots[places] = source.slot_of[own]
        return slots

    def is_known(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks and pieces are in memory or being fetched: ``(n,) bool``."""
        slots = self.slots(numbers)
        known: NDArray[np.bool_] = (slots > ABSENT) | (slots == IN_FLIGHT)
        return known
