"""Reuse the memory of batches that are no longer used.

A new buffer costs more than receiving the data, since its pages are touched for the first time. So
the memory of a batch returns to the pool when the last view of it is gone, and never sooner: the
owner may keep a batch for any time.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.payload import ALIGNMENT

_NEEDED = 2
"""Buffers that are kept, however large: the batch in the loop's hands, and the next one, come back
together at the end of an epoch, and both are needed at once after it."""

# Of all pools, and held during a fork, so that no child has to wait for a thread that it lacks.
# Re-entrant: taking a buffer may collect garbage, whose finalizer gives one back.
_LOCK = threading.RLock()
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)


class BufferPool:
    """Hand out aligned, writable memory and take it back when its views are gone.

    Safe to use from several threads.
    """

    def __init__(
        self, *, idle_bytes: int, make: Callable[[int], NDArray[np.uint8]] | None = None
    ) -> None:
        """Make an empty pool.

        Args:
            idle_bytes: Most bytes to keep for reuse, >= 0; memory beyond that is freed, except for
                two buffers.
            make: Makes ``(size,) uint8`` or more, 64-byte aligned; None for plain memory.
        """
        self._make = make or aligned
        self._idle_limit = idle_bytes
        self._idle: list[memoryview] = []
        self._idle_bytes = 0
        # By the id of the reference that calls `_give_back`: a tenth of weakref.finalize's time.
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.uint8]], memoryview]] = {}

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return ``(size,) uint8``, 64-byte aligned, with any content.

        The caller owns it; the memory is reused once the array and all views of it are gone.
        """
        memory = self._pop(size)
        # The memoryview between storage and array keeps NumPy from collapsing the chain of bases:
        # every view keeps `array` alive, and the storage is free only when `array` is.
        array = np.frombuffer(memory, np.uint8, size)
        reference = weakref.ref(array, self._give_back)
        self._lent[id(reference)] = reference, memory
        return array

    def _pop(self, size: int) -> memoryview:
        most = 2 * size + (1 << 20)
        with _LOCK:
            # The most recently used first, which may still be in the processor's caches.
            for index in range(len(self._idle) - 1, -1, -1):
                memory = self._idle[index]
                if size <= memory.nbytes <= most:
                    self._idle_bytes -= memory.nbytes
                    return self._idle.pop(index)
        return self._make(max(1, size)).data

    def _give_back(self, reference: weakref.ref[NDArray[np.uint8]]) -> None:
        _, memory = self._lent.pop(id(reference))
        with _LOCK:
            is_needed = len(self._idle) < _NEEDED
            if is_needed or self._idle_bytes + memory.nbytes <= self._idle_limit:
                self._idle.append(memory)
                self._idle_bytes += memory.nbytes


def aligned(size: int) -> NDArray[np.uint8]:
    """Return ``(size,) uint8`` that starts at a multiple of 64 bytes."""
    block = np.empty(size + ALIGNMENT, dtype=np.uint8)
    skip = -block.ctypes.data % ALIGNMENT
    return block[skip : skip + size]
