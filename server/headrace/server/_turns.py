"""Turns at the work of making batches, so that of many streams none is starved.

Each of 64 streams has a thread, and each wants Python's lock whenever it has work: who gets it is
chance, and the slowest stream had two thirds of the fastest's bytes
(tests/benchmarks/bench_many_ranks.py).

Contract:

1. At most ``count`` threads have a turn; those that wait get theirs in the order in which they
   came.
2. A turn is for work in memory. Where it meets a store after all (a page of a block table that is
   read when it is needed) others lose little: when no turn has ended for `_STUCK_S`, who waits
   longest takes one more, and as many are given up when the long ones end.
3. Who may have to leave while it waits waits by `queued`, which lends nothing.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Generator

# Python runs one thread at a time, and another while that one copies; more than some find nothing
# to do (two measured, on two processors; four for larger machines is arbitrary).
_MOST = 4

# Making a batch takes milliseconds; the rest is for a machine that is short of processors.
_STUCK_S = 0.1


class Turns:
    """A semaphore that is fair. Safe for several threads.

    Args:
        count: How many may work at a time; as many as there are processors, and few, without it.
    """

    def __init__(self, count: int | None = None) -> None:
        self._lock = threading.Lock()
        self._free = count or min(_MOST, os.cpu_count() or 1)
        self._waiting: deque[threading.Lock] = deque()
        self._lent = 0
        self._moved_at = time.monotonic()

    def turn(self) -> Turn:
        """Return a context in which the caller has a turn; entering it waits for that."""
        return Turn(self)

    def begin(self) -> None:
        """Wait for a turn; `end` must follow."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        while not mine.acquire(timeout=_STUCK_S):
            with self._lock:
                is_stuck = time.monotonic() - self._moved_at >= _STUCK_S
                if is_stuck and self._waiting and self._waiting[0] is mine:
                    self._waiting.popleft()
                    self._lent += 1
                    self._moved_at = time.monotonic()
                    return

    def queued(self) -> Generator[None, None, None]:
        """Wait for a turn, and yield now and then; `end` must follow, unless it is closed."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        try:
            while not mine.acquire(timeout=_STUCK_S):
                yield
        except GeneratorExit:
            self._give_up(mine)
            raise

    def _give_up(self, place: threading.Lock) -> None:
        with self._lock:
            if place in self._waiting:
                self._waiting.remove(place)
                return
        # It has become a turn meanwhile.
        self.end(0.0)

    def end(self, seconds: float) -> None:
        """Give up a turn that took so long."""
        with self._lock:
            self._moved_at = time.monotonic()
            if self._lent and seconds >= _STUCK_S:
                self._lent -= 1
            elif self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


class Turn:
    """A turn, as a context. A class, because two a batch as generators cost 4 us."""

    __slots__ = ("_began", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._began = 0.0

    def __enter__(self) -> None:
        self._turns.begin()
        self._began = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._turns.end(time.monotonic() - self._began)
