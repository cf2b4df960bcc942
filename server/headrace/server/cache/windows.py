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
4. `Pieces.close` waits for running reads, so that the dataset may be closed.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.server.cache.fetch.block_runs import BlockReader, read_run, run_blocks
from headrace.server.cache.joined_sources import split_by
from headrace.server.cache.source import ABSENT, IN_FLIGHT, Source
from headrace.storage import ReadBlock

if TYPE_CHECKING:
    from headrace.server.cache.block_cache import BlockCache


class Pieces:
    """The pieces of one dataset in the windows of all jobs; thread-safe.

    Attributes:
        cache: See below.
        whole: See below.

    Args:
        cache: The cache.
        whole: The dataset in the cache.
        reader: Reads its blocks.
    """

    def __init__(self, cache: BlockCache, whole: Source, reader: BlockReader) -> None:
        self.cache = cache
        self.whole = whole
        self._reader = reader
        self._lock = threading.Lock()
        self._sources: set[Source] = set()
        # Pieces that nothing refers to any more, to be freed at the next occasion: garbage is
        # collected while any lock may be held.
        self._over: deque[Source] = deque()

    def add(self, blocks: NDArray[np.int64], places: Sequence[NDArray[np.int64]]) -> Source:
        """Add pieces of blocks; see `Windows.add`."""
        self.free()
        source = self.cache.add_source(
            _PieceReader(self._reader, dict(zip(blocks.tolist(), places, strict=True))),
            self.whole.layout,
            block_count=self.whole.slot_of.size,
            store=self.whole.store,
        )
        with self._lock:
            self._sources.add(source)
        return source

    def free_after(self, window: Window, source: Source) -> None:
        """Free pieces some time after their window."""
        weakref.finalize(window, self._over.append, source).atexit = False

    def free(self) -> None:
        """Free the pieces of windows that are over."""
        while self._over:
            try:
                source = self._over.popleft()
            except IndexError:
                return
            with self._lock:
                is_open = source in self._sources
                self._sources.discard(source)
            if is_open:
                self.cache.retire_source(source)

    def close(self) -> None:
        """Free all pieces, and wait for reads of them."""
        with self._lock:
            sources = list(self._sources)
            self._sources.clear()
        for source in sources:
            self.cache.remove_source(source)


class Window:
    """The pieces that a stretch of an epoch needs; `Windows.add` makes one.

    Attributes:
        first: The number of the piece of block 0.
        sources: Its pieces in the cache, by the index of their dataset.
    """

    __slots__ = ("__weakref__", "first", "sources")

    def __init__(self, first: int, sources: Mapping[int, Source]) -> None:
        self.first = first
        self.sources = sources


class Windows:
    """The windows of all jobs that read a dataset, or a mixture of several; thread-safe.

    Attributes:
        stride: Block b of the datasets has number b, and a piece of it b plus a multiple of this.

    Args:
        members: The pieces of each dataset.
        first_blocks: ``(datasets + 1,) int64``: the number of each dataset's first block, and the
            end.
    """

    slot_of: None = None
    """None, because each window has its own tables."""

    def __init__(self, members: Sequence[Pieces], first_blocks: NDArray[np.int64]) -> None:
        # A number lies between two windows, so that no read brings blocks of both.
        self.stride = int(first_blocks[-1]) + 1
        self._members = tuple(members)
        self._firsts = first_blocks
        self._lock = threading.Lock()
        self._count = 0
        self._alive: WeakValueDictionary[int, Window] = WeakValueDictionary()

    def add(self, blocks: NDArray[np.int64], places: Sequence[NDArray[np.int64]]) -> Window:
        """Add a window.

        Args:
            blocks: ``(pieces,) int64``: its blocks, ascending.
            places: The places in each block of the samples that its piece holds, in their order.
        """
        sources = {
            index: self._members[index].add(own, [places[at] for at in where.tolist()])
            for index, where, own in split_by(self._firsts, blocks)
        }
        with self._lock:
            self._count += 1
            window = Window(self._count * self.stride, sources)
            self._alive[self._count] = window
        for index, source in sources.items():
            self._members[index].free_after(window, source)
        return window

    def free(self) -> None:
        """Free the pieces of windows that are over."""
        for member in self._members:
            member.free()

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
                source = self._members[index].whole if not owner else None
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


class _PieceReader:
    """Reads blocks, and keeps the samples of a window.

    Args:
        reader: Reads blocks.
        places: The samples to keep of each block.
    """

    def __init__(self, reader: BlockReader, places: dict[int, NDArray[np.int64]]) -> None:
        self._reader = reader
        self._places = places

    def read_block(self, block: int) -> pa.RecordBatch:
        """Fetch, verify and decode one piece."""
        return self._kept(block, self._reader.read_block(block))

    def run_blocks(self, max_bytes: int) -> int:
        """Return how many neighbouring blocks to read together."""
        return run_blocks(self._reader, max_bytes)

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Read blocks together, and keep a piece of each; errors are values."""
        for read in read_run(self._reader, blocks):
            if isinstance(read.content, pa.RecordBatch):
                yield replace(read, content=self._kept(read.block, read.content))
            else:
                yield read

    def _kept(self, block: int, content: pa.RecordBatch) -> pa.RecordBatch:
        return content.take(self._places[block])
