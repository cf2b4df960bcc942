"""The client's mapping of a ring, and the slots that it releases.

Contract:

1. A payload is a view of its slot. The slot is released when the last array in it is gone, and not
   earlier: keeping a tensor keeps the slot.
2. Nothing is sent when an array is freed, which may happen in any thread. The reader of the ring
   sends releases between two batches: `give_back` in groups of about ``_GROUP_BYTES``, and `flush`
   all of them.
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

# Releases wait until so much would come free: one by one they would cost small batches as much as
# all else. More would only make the server write where no cache reaches.
_GROUP_BYTES = 1 << 20
# And of a small ring no more than this part.
_SHARE = 4
# A socket takes a record this small whole or not at all, so records are never torn.
_MOST_RECORDS = 512

_UINT8 = np.dtype(np.uint8)


class SlotArray(np.ndarray[Any, np.dtype[Any]]):
    """An array in a slot, which it keeps alive: views of it have it as their base.

    Attributes:
        owner: The object that lives as long as any array of the slot.
    """

    __slots__ = ("owner",)
    owner: object


class Mapping:
    """A mapped ring, for as long as a slot of it lives.

    Attributes:
        mapped: The memory.
        array: The memory as ``(size,) uint8``.
        bytes: The memory byte by byte.
        words: The memory as ``(size // 8,) int64``.
        numbers: The memory number by number.
        gone: The slots that nobody has any more.
        give_up: Adds one of them. Who has a slot calls this when it ends, by a ``__del__`` that is
            no function of Python: in one Ctrl-C could come, and what is raised there is dropped.
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
        self, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object
    ) -> SlotArray:
        """Return a writable array.

        Args:
            begin: Where it starts in the ring.
            shape: Its shape.
            dtype: The type of its items.
            owner: The object that it keeps alive.
        """
        # In the mapping itself, not in an array: where all bases are arrays NumPy collapses them,
        # and a view would keep the ring alive and not this one.
        array = SlotArray(shape, dtype, self.mapped, begin)
        array.owner = owner
        return array


class Slot:
    """A slot that belongs to us until this object ends, in any thread and at any time."""

    __slots__ = ("__del__", "_mapping", "_opened")

    def __init__(self, mapping: Mapping, opened: OpenSlot) -> None:
        self._mapping = mapping
        self._opened = opened
        # A weak reference with a callback does the same, and takes longer.
        self.__del__ = partial(mapping.give_up, opened)

    def payload(self) -> SlotArray:
        """Return the payload, ``(payload_bytes,) uint8``, which keeps the slot."""
        begin = self._opened.payload_begin
        return self._mapping.array_at(begin, (self._opened.payload_end - begin,), _UINT8, self)


class RingMemory:
    """One ring, mapped for reading and writing; slots may end in any thread.

    Args:
        fd: A descriptor of the memory; the caller closes it.
        size: Bytes.
        connection: To the server; does not become ours.

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
        # For forks, which come from any thread.
        self._lock = threading.RLock()
        _OPEN.add(self)

    @property
    def is_spent(self) -> bool:
        """Whether too many slots can never be released, so that a new ring is better."""
        return self._kept_bytes * 2 > self._size

    @property
    def mapping(self) -> Mapping:
        """Where slots are; not once detached."""
        assert self._mapping is not None
        return self._mapping

    def note_lent(self, newest: int, size: int) -> None:
        """Note that slots are out, before a loop may get them.

        Args:
            newest: The highest generation of them.
            size: Their bytes.
        """
        with self._lock:
            self._newest = newest
            self._lent_bytes += size

    def give_back(self) -> None:
        """Tell the server which slots may be written again, if there are many."""
        if self._gone:
            self._collect()
            if self._waiting_bytes >= self._group_bytes:
                self.flush()

    def flush(self) -> None:
        """Tell the server of all slots that may be written again, without waiting."""
        self._collect()
        with self._lock:
            while (connection := self._connection) is not None and self._waiting:
                group = [
                    self._waiting.popleft() for _ in range(min(_MOST_RECORDS, len(self._waiting)))
                ]
                try:
                    connection.send(releases(group), socket.MSG_DONTWAIT)
                except OSError:
                    # The server has more to read than it can use, or is gone.
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
        """Never release the slots that are out now: a process that was forked sees them."""
        with self._lock:
            self._collect()
            self._kept_up_to = self._newest
            self._kept_bytes = self._lent_bytes

    def forget_the_server(self) -> None:
        """Stop releasing: this process was forked off."""
        self._connection = None
        # Another thread may have held it.
        self._lock = threading.RLock()

    def _collect(self) -> None:
        with self._lock:
            gone, freed_bytes = self._gone, 0
            while gone:
                begin, generation, _, _, end, _ = gone.popleft()
                if generation > self._kept_up_to:
                    self._waiting.append((begin, generation))
                    freed_bytes += end - begin
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
