"""Memory that a supervisor writes and its workers read, and desks that workers write.

Contract between a supervisor that evicts and a worker that reads without asking:

1. A block may be read at the place in its dataset's table, while the table names it.
2. A worker that wants to read blocks looks their slots up, notes a pin on its desk for each, and
   then looks them up again. Only if all are where they were may it read; else it takes the pins
   back.
3. A supervisor that wants to evict a block takes it out of the table, and then looks at all desks.
   Only if none has a pin on its slot may it give the memory away; else it puts the block back.
4. Between the two steps of 2, and of 3, stands a full memory barrier. So of two that do both at
   once at least one sees the other, and backs off.
5. What is written of a new block is written, behind a barrier, before the table names it.
6. Only its worker writes a desk. When a worker dies its desk is thrown away, and all its pins.

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

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigurationError

# F_SEAL_FUTURE_WRITE of Linux 5.1, which Python names only since 3.13: who maps the memory from
# now on cannot write to it.
_SEAL_FUTURE_WRITE = 0x0010

# A lock's atomic exchange is a full barrier on x86-64, and Python has no cheaper one.
_barrier_lock = threading.Lock()


def barrier() -> None:
    """Make all that this thread wrote visible to others before it reads on."""
    with _barrier_lock:
        pass


class Shared:
    """Anonymous memory that costs nothing until it is touched, and can be handed over.

    Attributes:
        fd: Its file descriptor.
        size: Bytes.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size

    @classmethod
    def create(cls, name: str, size: int) -> Shared:
        """Make memory; the name shows in lists of open files.

        Raises:
            ConfigurationError: The system has no such memory.
        """
        if not hasattr(os, "memfd_create"):
            raise ConfigurationError(
                "this system has no memfd, which the processes of --workers need to share the "
                "cache: leave --workers out to serve in one process"
            )
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        return cls(fd, size)

    def map(self) -> NDArray[np.uint8]:
        """Return the memory, ``(size,) uint8``, to write to."""
        mapped = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED)
        # A kernel without huge pages is only slower.
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8)

    def map_read_only(self) -> NDArray[np.uint8]:
        """Return the memory, ``(size,) uint8``, to read."""
        mapped = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ)
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8)

    def seal(self) -> None:
        """Forbid everybody to map it for writing from now on, or to change its size."""
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        with contextlib.suppress(OSError):  # an older kernel
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)

    def close(self) -> None:
        """Close the descriptor; existing mappings stay."""
        os.close(self.fd)


class Desk:
    """What one worker states of the blocks that it reads and will read, by slot.

    Attributes:
        pins: ``(capacity,) int32``: how many of its streams read a block just now.
        last_use: ``(capacity,) int64``: when one did last, in nanoseconds of the monotonic clock.
        next_use: ``(capacity,) float64``: when one will next, in seconds of that clock; 0 if that
            is not known.
        owner: ``(capacity,) int64``: the job that will.
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
        """Return the bytes that a desk of that many slots takes."""
        return capacity * cls._ROW_BYTES


class SourceTables:
    """Where the blocks of one dataset lie.

    Attributes:
        slot_of: ``(blocks,) int32``: the slot of each block; 0 if it is not cached, -1 if it is
            being fetched.
        bases: ``(parts, slots) int64``: where the parts of the block in a slot begin.
    """

    def __init__(self, memory: NDArray[np.uint8], *, block_count: int, part_count: int) -> None:
        begin = _whole(block_count * 4)
        self.slot_of = memory[: block_count * 4].view(np.int32)
        self.bases = memory[begin:].view(np.int64).reshape(part_count, -1)

    @staticmethod
    def size(*, block_count: int, part_count: int, capacity: int) -> int:
        """Return the bytes that the tables take."""
        return _whole(block_count * 4) + part_count * capacity * 8


def _whole(size: int) -> int:
    return size + -size % mmap.PAGESIZE
