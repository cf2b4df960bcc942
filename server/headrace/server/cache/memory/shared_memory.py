"""Memory that a supervisor writes and its workers read, and tables that workers write.

Contract between a supervisor that evicts and a worker that reads without asking:

1. A block may be read at its place in the dataset's table as long as the table names it.
2. To read blocks, a worker looks up their slots, notes a pin for each on its table, and looks them
   up again. It may read only if no slot has changed; otherwise it removes the pins.
3. To evict a block, a supervisor removes it from the table and then looks at the tables of all
   workers. It may reuse the memory only if none has a pin on the slot; otherwise it puts the block
   back.
4. A full memory barrier separates the two steps of 2, and those of 3. So if both happen at the same
   time, at least one side sees the other and backs off.
5. A new block is written completely, followed by a barrier, before the table names it.
6. Only its worker writes a table. When a worker dies, its table is discarded with all its pins.

If the code differs, the code is wrong.

Source: 2 to 4 are hazard pointers (Michael, "Hazard Pointers: Safe Memory Reclamation for
Lock-Free Objects", 2004).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigurationError

# F_SEAL_FUTURE_WRITE of Linux 5.1, which Python names since 3.13: later mappings of the memory are
# read-only.
_SEAL_FUTURE_WRITE = 0x0010

# A lock's atomic exchange is a full barrier on x86-64, and Python has no cheaper one.
_barrier_lock = threading.Lock()


def barrier() -> None:
    """Make all writes of this thread visible to others before its next reads."""
    with _barrier_lock:
        pass


class Shared:
    """Anonymous memory that costs nothing until it is touched, and can be passed to processes.

    Attributes:
        fd: The file descriptor.
        size: Size in bytes.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size

    @classmethod
    def create(cls, name: str, size: int) -> Shared:
        """Create memory; the name appears in lists of open files.

        Raises:
            ConfigurationError: The system does not support such memory.
        """
        if not hasattr(os, "memfd_create"):
            raise ConfigurationError(
                "this system has no memfd, which the processes of --workers need to share the "
                "cache: leave --workers out to serve in one process"
            )
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, size)

    def map(self) -> NDArray[np.uint8]:
        """Return the memory, ``(size,) uint8``, for writing."""
        mapped = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED)
        # A kernel without huge pages is only slower.
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8)

    def map_read_only(self) -> NDArray[np.uint8]:
        """Return the memory, ``(size,) uint8``, for reading."""
        mapped = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ)
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8)

    def seal(self) -> None:
        """Forbid all later mappings for writing, and changes of its size."""
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        with contextlib.suppress(OSError):  # an older kernel
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)

    def close(self) -> None:
        """Close the descriptor; existing mappings stay."""
        os.close(self.fd)


class WorkerTable:
    """What a worker announces about the blocks that it reads and will read, by slot.

    Attributes:
        pins: ``(capacity,) int32``: how many of its streams read the block now.
        last_use: ``(capacity,) int64``: the time of the last read, in nanoseconds of the monotonic
            clock.
        next_use: ``(capacity,) float64``: the time of the next read, in seconds of that clock; 0 if
            unknown.
        owner: ``(capacity,) int64``: the job of the next read.
    """

    _ROW_BYTES = 32

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        capacity = memory.size // self._ROW_BYTES
        eight = memory[: capacity * self._ROW_BYTES].view(np.int64).reshape(4, capacity)
        self.last_use = eight[0]
        self.next_use = eight[1].view(np.float64)
        self.owner = eight[2]
        self.pins = eight[3].view(np.int32)[:capacity]

    @classmethod
    def size(cls, capacity: int) -> int:
        """Return the bytes of a worker's table with this many slots."""
        return capacity * cls._ROW_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class SourceTables:
    """The places of the blocks of one dataset, or of pieces of them.

    Attributes:
        slot_of: ``(blocks,) int32``: the slot of each block; 0 if it is not cached, -1 if it is
            being fetched.
        bases: ``(parts, slots) int64``: the bases of the parts of the block in each slot.
    """

    slot_of: NDArray[np.int32]
    bases: NDArray[np.int64]

    @classmethod
    def lie_in(
        cls, memory: NDArray[np.uint8], *, block_count: int, part_count: int
    ) -> SourceTables:
        """Return the tables in shared memory."""
        start = _whole(block_count * 4)
        return cls(
            memory[: block_count * 4].view(np.int32),
            memory[start:].view(np.int64).reshape(part_count, -1),
        )

    @staticmethod
    def size(*, block_count: int, part_count: int, capacity: int) -> int:
        """Return the bytes of the tables."""
        return _whole(block_count * 4) + part_count * capacity * 8


class WindowTables:
    """The places of a window's pieces.

    Attributes:
        is_over: ``(1,) int64``: whether all workers have closed the window.
        slots_of: ``(blocks,) int32`` for each dataset: the slot of each piece, as in
            `SourceTables`.
    """

    def __init__(self, memory: NDArray[np.uint8], block_counts: Sequence[int]) -> None:
        self.is_over = memory[:8].view(np.int64)
        ends = accumulate((_whole(4 * count) for count in block_counts), initial=_whole(8))
        self.slots_of = [
            memory[start : start + 4 * count].view(np.int32)
            for start, count in zip(ends, block_counts, strict=False)
        ]

    @staticmethod
    def size(block_counts: Sequence[int]) -> int:
        """Return the bytes of the tables, for datasets with so many blocks."""
        return _whole(8) + sum(_whole(4 * count) for count in block_counts)


def _whole(size: int) -> int:
    return size + -size % mmap.PAGESIZE
