"""The client's mapping of a ring, and the slots that it releases.

Contract:

1. A payload is a view of its slot. The slot is released when the last array in it is gone, and not
   earlier: keeping a tensor keeps the slot.
2. Nothing is sent when an array is freed, which may happen in any thread. The reader of the ring
   sends releases between two batches: `give_back` sends groups of about ``_GROUP_BYTES``, and
   `flush` all of them.
3. A forked process has views of the same memory. So slots in use at a fork are never released, and
   a child releases none.
4. The mapping outlives the stream as long as a view exists.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import threading
import weakref
from collections import deque
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.ring import OpenSlot, releases

# Releases wait until they free this much: one by one, they would cost small batches as much as
# everything else. More would make the server write to memory that is in no cache.
_GROUP_BYTES = 1 << 20
# The same bound for a small ring: this part of it.
_SHARE = 4
# A socket takes a record this small whole or not at all, so records are never torn.
_MOST_RECORDS = 512

_UINT8 = np.dtype(np.uint8)


class SlotArray(np.ndarray[Any, np.dtype[Any]]):
    """An array in a slot, which keeps the slot alive; it is the base of its views.

    Attributes:
        owner: The object that lives as long as any array of the slot.
    """

    __slots__ = ("owner",)
    owner: object


class Mapping:
    """A mapped ring, which exists as long as a slot of it is in use.

    Attributes:
        mapped: The memory.
        array: The memory as ``(size,) uint8``.
        bytes: The memory byte by byte.
        words: The memory as ``(size // 8,) int64``.
        numbers: The memory number by number.
        gone: The slots that are no longer in use.
        give_up: Adds a slot to them. The owner of a slot calls this at its end, by a ``__del__``
            that is not a Python function: Ctrl-C could come in one, and Python drops what is raised
            there.
    """

    __slots__ = ("array", "bytes", "give_up", "gone", "mapped", "numbers", "words")

    def __init__(self, fd: int, size: int) -> None:
        # Shared, so that the server's writes are seen. Writable, so that tensors are.
        self.mapped = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # A kernel without huge pages is only slower.
        with contextlib.suppress(OSError):
            self.mapped.madvise(mmap.MADV_HUGEPAGE)
        self.array: NDArray[np.uint8] = np.frombuffer(self.mapped, np.uint8)
        self.bytes = self.array.data
        self.words: NDArray[np.int64] = self.array[: size - size % 8].view(np.int64)
        self.numbers = self.words.data
        self.gone: deque[OpenSlot] = deque()
        self.give_up = self.gone.append

    def array_at(
        self, start: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object
    ) -> SlotArray:
        """Return a writable array.

        Args:
            start: Where it starts in the ring.
            shape: Its shape.
            dtype: The type of its items.
            owner: The object that it keeps alive.
        """
        # Based on the mapping itself, not on an array: NumPy collapses chains of arrays, and a view
        # would keep the ring alive, but not its slot.
        array = SlotArray(shape, dtype, self.mapped, start)
        array.owner = owner
        return array


class Slot:
    """A slot in use until this object is freed, in any thread and at any time."""

    __slots__ = ("__del__", "_mapping", "_opened")

    def __init__(self, mapping: Mapping, opened: OpenSlot) -> None:
        self._mapping = mapping
        self._opened = opened
        # A weak reference with a callback would do the same, but takes longer.
        self.__del__ = partial(mapping.give_up, opened)

    def payload(self) -> SlotArray:
        """Return the payload, ``(payload_bytes,) uint8``, which keeps the slot alive."""
        start = self._opened.payload_start
        return self._mapping.array_at(start, (self._opened.payload_end - start,), _UINT8, self)


class RingMemory:
    """One ring, mapped for reading and writing; slots may be freed in any thread.

    Args:
        fd: A descriptor of the memory; the caller closes it.
        size: Bytes.
        connection: A connection to the server; the caller owns it.

    Attributes:
        array: ``(size,) uint8``; empty once detached.
    """

    def __init__(self, fd: int, size: int, connection: socket.socket) -> None:
        self._mapping: Mapping | None = Mapping(fd, size)
        self._gone = self._mapping.gone
        self.array = self._mapping.array
        self._size = size
        self._group_bytes = min(_GROUP_BYTES, size // _SHARE)
        self._connection: socket.socket | None = connection
        self._waiting: deque[tuple[int, int]] = deque()
        self._waiting_bytes = 0
        self._lent_bytes = 0
        self._newest = 0
        self._kept_up_to = 0
        self._kept_bytes = 0
        # For forks, which may happen in any thread.
        self._lock = threading.RLock()
        _OPEN.add(self)

    @property
    def is_spent(self) -> bool:
        """Whether too many slots can never be released, so that a new ring is better."""
        return self._kept_bytes * 2 > self._size

    @property
    def mapping(self) -> Mapping:
        """The mapping of the slots; not available after `detach`."""
        assert self._mapping is not None
        return self._mapping

    def note_lent(self, newest: int, size: int) -> None:
        """Note that slots are in use, before a loop may get them.

        Args:
            newest: Their highest generation.
            size: Their size in bytes.
        """
        with self._lock:
            self._newest = newest
            self._lent_bytes += size

    def give_back(self) -> None:
        """Release free slots to the server, if there are many."""
        if self._gone:
            self._collect()
            if self._waiting_bytes >= self._group_bytes:
                self.flush()

    def flush(self) -> None:
        """Release all free slots to the server, without waiting."""
        self._collect()
        with self._lock:
            while (connection := self._connection) is not None and self._waiting:
                group = [
                    self._waiting.popleft() for _ in range(min(_MOST_RECORDS, len(self._waiting)))
                ]
                try:
                    connection.send(releases(group), socket.MSG_DONTWAIT)
                except OSError:
                    # The server has not read earlier releases, or is gone.
                    self._waiting.extendleft(reversed(group))
                    return
            self._waiting_bytes = 0

    def detach(self) -> None:
        """Stop releasing: the stream is over, and only views keep the mapping alive."""
        with self._lock:
            self._connection = None
            self._waiting.clear()
            self._mapping = None
            self.array = np.empty(0, np.uint8)

    def keep_what_is_out(self) -> None:
        """Never release the slots that are in use now: a forked process sees them."""
        with self._lock:
            self._collect()
            self._kept_up_to = self._newest
            self._kept_bytes = self._lent_bytes

    def forget_the_server(self) -> None:
        """Stop releasing: this is a forked process."""
        self._connection = None
        # Another thread of the parent may have held it.
        self._lock = threading.RLock()

    def _collect(self) -> None:
        with self._lock:
            gone, freed_bytes = self._gone, 0
            while gone:
                start, generation, _, _, end, _ = gone.popleft()
                if generation > self._kept_up_to:
                    self._waiting.append((start, generation))
                    freed_bytes += end - start
            self._waiting_bytes += freed_bytes
            self._lent_bytes -= freed_bytes


def _keep_in_all() -> None:
    for ring in list(_OPEN):
        ring.keep_what_is_out()


def _forget_in_all() -> None:
    for ring in list(_OPEN):
        ring.forget_the_server()


_OPEN: weakref.WeakSet[RingMemory] = weakref.WeakSet()
os.register_at_fork(after_in_parent=_keep_in_all, after_in_child=_forget_in_all)
