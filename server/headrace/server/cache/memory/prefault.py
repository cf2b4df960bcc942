"""Touch the memory of a cache ahead of its use, so that no fetch has to.

The system hands out memory at its first touch, which takes several times as long as writing a block
(measured: docs/decisions/how-fast-cold-reads-are.md).

Contract:

1. Nothing is overwritten, whatever other threads write meanwhile.
2. Memory is touched from its start up to what the served datasets can fill, and only while the
   machine and the limits of this process leave at least as much as has been touched.
3. The thread pauses while a stream waits for blocks, and ends when it has nothing more to touch.
4. `stop` ends it after at most one step of `_STEP_BYTES`, which takes milliseconds.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.server.cache.memory.arena import Memory
from headrace.server.cache.memory.system_memory import memory_left
from headrace.server.kernels.loader import LOOPS

# Two huge pages: some milliseconds.
_STEP_BYTES = 4 << 20
# How often it looks whether streams still wait (arbitrary).
_PAUSE_S = 0.05


class Prefault:
    """Touches the memory of one cache, in a thread that runs while there is something to touch.

    It has the priority of any other thread: one of low priority may be stopped for long while it
    holds Python's lock, and everything else would wait for it.

    Attributes:
        touched_bytes: How much has been touched, from the start of the memory.

    Args:
        lock: The cache's lock.
        memory: The memory.
        used_bytes: Returns how much holds blocks: memory is used from its start.
        wanted_bytes: Returns how much the served datasets can fill.
        is_awaited: Returns whether a stream waits for blocks.
    """

    def __init__(
        self,
        lock: threading.Lock,
        memory: Memory,
        *,
        used_bytes: Callable[[], int],
        wanted_bytes: Callable[[], int],
        is_awaited: Callable[[], bool],
    ) -> None:
        self.touched_bytes = 0
        self._lock = lock
        self._memory = memory.array
        self._used_bytes = used_bytes
        self._wanted_bytes = wanted_bytes
        self._is_awaited = is_awaited
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Touch what is wanted and has not been touched; the caller holds the lock."""
        if self._thread is None and self._is_short:
            self._thread = threading.Thread(target=self._run, name="headrace-prefault", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Touch nothing more, wait for the thread, and let the memory go."""
        self._ending.set()
        if (thread := self._thread) is not None:
            thread.join()
        self._memory = self._memory[:0].copy()

    @property
    def _is_short(self) -> bool:
        self.touched_bytes = max(self.touched_bytes, self._used_bytes())
        return self.touched_bytes < min(self._wanted_bytes(), self._memory.size)

    def _run(self) -> None:
        while self._goes_on():
            end = self.touched_bytes + _STEP_BYTES
            LOOPS.touch(self._memory[self.touched_bytes : end])
            self.touched_bytes = min(end, self._memory.size)

    def _goes_on(self) -> bool:
        while True:
            has_room = memory_left() >= self.touched_bytes + _STEP_BYTES
            with self._lock:
                if not (has_room and self._is_short) or self._ending.is_set():
                    self._thread = None
                    return False
                if not self._is_awaited():
                    return True
            self._ending.wait(_PAUSE_S)
