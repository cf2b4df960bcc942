"""The client's mapping of a ring, and the slots that it gives back.

Contract:

1. A payload is a view of its slot. The slot is released when the last view of it is gone, and
   never sooner: whoever keeps a tensor keeps the slot.
2. Releases go out in groups of about ``_GROUP_BYTES``, and when `flush` is called.
3. A process that was forked off has views of the same memory. So slots that were out at a fork are
   never released, and a child releases none.
4. The mapping outlives the stream for as long as a view lives.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import sys
import threading
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

from headrace.ring import RecordKind, record

# Releases wait until so much would come free: one by one they would cost small batches as much as
# all else. More would only make the server write where no cache reaches.
_GROUP_BYTES = 1 << 20
# And of a small ring no more than this part.
_SHARE = 4
# A socket takes so little whole or not at all, so records are never torn.
_MOST_RECORDS = 512


# Made for each batch: `weakref.finalize` does the same, and takes three times as long.
class _Out(weakref.ref[NDArray[np.uint8]]):
    """The array that all views of a slot keep alive, for as long as it does.

    Attributes:
        slot: Where the slot begins in the ring.
        generation: Of the slot.
        size: Bytes of the slot.
    """

    __slots__ = ("generation", "size", "slot")
    slot: int
    generation: int
    size: int


class RingMemory:
    """One ring, mapped to be read and written; `release` may run in any thread.

    Args:
        fd: Of the memory; stays the caller's.
        size: Bytes.
        connection: To the server; does not become ours.

    Attributes:
        array: ``(size,) uint8``.
    """

    def __init__(self, fd: int, size: int, connection: socket.socket) -> None:
        # Shared, so that the server's writes are seen. Writable, so that tensors are.
        mapped = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # A kernel without huge pages is only slower.
        with contextlib.suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        self.array = np.frombuffer(mapped, np.uint8)
        self._size = size
        self._group_bytes = min(_GROUP_BYTES, size // _SHARE)
        self._pid = os.getpid()
        self._connection: socket.socket | None = connection
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        # Re-entrant: sending may collect garbage, whose finalizers release slots.
        self._lock = threading.RLock()
        self._newest = 0
        self._kept_up_to = 0
        self._out: dict[int, _Out] = {}
        self._kept_bytes = 0
        _OPEN.add(self)

    @property
    def is_spent(self) -> bool:
        """Whether so many slots are never to be released that a new ring is better."""
        return self._kept_bytes * 2 > self._size

    def view(self, begin: int, end: int, *, slot: int, generation: int) -> NDArray[np.uint8]:
        """Return ``(end - begin,) uint8`` of the ring, whose end releases its slot.

        Args:
            begin: Where it begins in the ring.
            end: Where it ends.
            slot: Where its slot begins.
            generation: Of the slot.
        """
        # By `frombuffer`, whose base is a memoryview: where all bases are arrays NumPy collapses
        # them, and a column would keep the ring alive and not this one. `self.array` lives on with
        # it too, for whoever pinned it.
        array = np.frombuffer(self.array.data, np.uint8, end - begin, begin)
        out = _Out(array, self._release)
        out.slot, out.generation, out.size = slot, generation, end - slot
        self._newest = generation
        self._out[generation] = out
        return array

    def flush(self) -> None:
        """Tell the server of all slots that may be written again."""
        with self._lock:
            while (connection := self._connection) is not None and (group := self._pop_group()):
                try:
                    connection.send(b"".join(group), socket.MSG_DONTWAIT)
                except OSError:
                    # The server has more to read than it can use, or is gone.
                    self._waiting.extendleft(reversed(group))
                    return
            self._waiting_bytes = 0

    def _pop_group(self) -> list[bytes]:
        # Others may append, and a finalizer inside of this may even flush.
        group: list[bytes] = []
        with contextlib.suppress(IndexError):
            while len(group) < _MOST_RECORDS:
                group.append(self._waiting.popleft())
        return group

    def detach(self) -> None:
        """Release nothing any more: the stream is over, and views alone hold the mapping."""
        with self._lock:
            self._connection = None
            self._waiting.clear()
            self.array = np.empty(0, np.uint8)

    def keep_what_is_out(self) -> None:
        """Never release the slots that are out now: a process that was forked sees them."""
        self._kept_up_to = self._newest
        self._kept_bytes = sum(out.size for out in list(self._out.values()))

    def _release(self, out: _Out) -> None:
        if sys.is_finalizing() or self._pid != os.getpid() or out.generation <= self._kept_up_to:
            return
        self._out.pop(out.generation, None)
        self._waiting.append(record(RecordKind.RELEASE, out.slot, out.generation))
        self._waiting_bytes += out.size
        if self._waiting_bytes >= self._group_bytes:
            self.flush()


def _keep_in_all() -> None:
    for ring in list(_OPEN):
        ring.keep_what_is_out()


_OPEN: weakref.WeakSet[RingMemory] = weakref.WeakSet()
os.register_at_fork(after_in_parent=_keep_in_all)
