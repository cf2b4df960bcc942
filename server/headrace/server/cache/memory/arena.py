"""The arena: one piece of memory for all cached blocks, and the extents in it.

All blocks lie in one arena, so that one call gathers a column for a whole batch from any blocks.
The arena is the cache's budget: blocks that do not fit in it are not cached.
"""

from __future__ import annotations

import bisect
import contextlib
import mmap

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.server.cache.memory.shared_memory import Shared

# Extents start and end at cache lines.
GRAIN = 64
# Shared tables have a slot for so many bytes, within 30 bits: a block of 64 KiB in 128 windows.
# What is never touched costs nothing.
_SLOT_BYTES, _MOST_SLOTS = 512, 1 << 30


class Memory:
    """Memory that several libraries read without copying.

    Attributes:
        array: ``(size,) uint8``.
        buffer: The memory as an Arrow buffer.
        view: The memory as a `memoryview`, to be sliced.
    """

    __slots__ = ("array", "buffer", "view")

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self.array = array
        self.buffer = pa.py_buffer(array.data)
        self.view = array.data

    def rows(self, row_bytes: int) -> NDArray[np.void]:
        """Return the memory as ``(size // row_bytes,)`` items of this size, without copying."""
        count = self.array.size // row_bytes
        return as_items(self.array[: count * row_bytes], row_bytes)


def as_items(array: NDArray[np.uint8], item_bytes: int) -> NDArray[np.void]:
    """Return contiguous bytes as items of a given size, without copying.

    NumPy gathers opaque items twice as fast as rows of bytes.
    """
    return array.reshape(-1).view(np.dtype((np.void, item_bytes)))


class ExtentAllocator:
    """Allocates parts of ``[0, size)`` by best fit, and joins freed neighbours.

    Not thread-safe.

    Args:
        size: Bytes to allocate from; rounded down to a multiple of 64.
    """

    def __init__(self, size: int) -> None:
        self.size = size - size % GRAIN
        self.used = 0
        self._by_size: list[tuple[int, int]] = []
        self._length_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        if self.size:
            self._add(0, self.size)

    @property
    def longest(self) -> int:
        """The length of the longest free part."""
        return self._by_size[-1][0] if self._by_size else 0

    def take(self, length: int) -> int | None:
        """Allocate ``length`` bytes and return where they start; None if no part is long enough."""
        length = rounded(length)
        at = bisect.bisect_left(self._by_size, (length, -1))
        if at == len(self._by_size):
            return None
        free, start = self._by_size[at]
        self._remove(start)
        if free > length:
            self._add(start + length, free - length)
        self.used += length
        return start

    def give(self, start: int, length: int) -> None:
        """Free what `take` returned, with the length that was requested."""
        length = rounded(length)
        self.used -= length
        end = start + length
        if end in self._length_at:
            end += self._remove(end)
        if start in self._start_of_end:
            start = self._start_of_end[start]
            self._remove(start)
        self._add(start, end - start)

    def _add(self, start: int, length: int) -> None:
        bisect.insort(self._by_size, (length, start))
        self._length_at[start] = length
        self._start_of_end[start + length] = start

    def _remove(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_of_end[start + length]
        del self._by_size[bisect.bisect_left(self._by_size, (length, start))]
        return length


class Arena:
    """An arena that workers map, and its header.

    Attributes:
        memory: The memory of the blocks.
        capacity: The most slots: pieces of blocks of 512 B would fill the arena.
        shared: The shared memory of the blocks, which workers may read.
        header: The shared memory of the header, which workers may read.
    """

    _HEADER_BYTES = 4096

    def __init__(self, size: int) -> None:
        # A power of two, because tables of slots double; see SlotTable.
        self.capacity = min(_MOST_SLOTS, max(256, 1 << (size // _SLOT_BYTES).bit_length()))
        self.shared = Shared.create("headrace-cache", max(size, 1))
        self.memory = Memory(self.shared.map())
        self.shared.seal()
        self.header = Shared.create("headrace-cache-header", self._HEADER_BYTES)
        self._counts = self.header.map().view(np.int64)
        self.header.seal()

    def note_eviction(self, capacity: int) -> None:
        """Tell workers that blocks are being evicted, so that they announce which they need."""
        self._counts[1] = capacity
        self._counts[0] += 1

    def note_filling(self, *, is_filling: bool) -> None:
        """Tell workers whether blocks may have to be evicted soon."""
        self._counts[2] = is_filling

    def close(self) -> None:
        """Close the descriptors."""
        self.shared.close()
        self.header.close()


class ArenaHeader:
    """The header of the arena, as a worker reads it."""

    def __init__(self, header: Shared) -> None:
        self._counts = header.map_read_only().view(np.int64)

    @property
    def evictions(self) -> int:
        """Number of blocks that have been evicted."""
        return int(self._counts[0])

    @property
    def is_filling(self) -> bool:
        """Whether blocks may have to be evicted soon."""
        return bool(self._counts[2])

    @property
    def slots(self) -> int:
        """Number of slots in the supervisor's table after the latest eviction."""
        return int(self._counts[1])


def rounded(length: int) -> int:
    """Return the length that an extent actually takes."""
    return max(GRAIN, length + -length % GRAIN)


def map_memory(size: int) -> Memory:
    """Map private memory, which costs nothing until it is touched."""
    mapped = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages is only slower.
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return Memory(np.frombuffer(mapped, np.uint8))
