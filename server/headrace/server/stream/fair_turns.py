"""Turns at the work of making batches, so that of many streams none is starved.

Each of 64 streams has a thread, and each wants Python's lock whenever it has work: who gets it is
chance, and the slowest stream had two thirds of the fastest's bytes
(tests/benchmarks/bench_many_ranks.py).

Contract:

1. At most ``count`` threads have a turn. Of those that wait the next is one of the caller whose
   turns have taken least time; of one caller's, the one that came first.
2. A caller that was away has no claim to the time that it did not use.
3. A turn is for work in memory. Where it meets a store after all (a page of a block table that is
   read when it is needed) others lose little: when no turn has ended for `_STUCK_S`, who waits
   longest takes one more, and as many are given up when the long ones end.
4. Who may have to leave while it waits waits by `queued`, which lends nothing.

The first is start-time fair queueing (Goyal, Vin and Cheng, 1996), with seconds as sizes.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Generator
from weakref import WeakValueDictionary

# Python runs one thread at a time, and another while that one copies; more than some find nothing
# to do (two measured, on two processors; four for larger machines is arbitrary).
_MOST = 4

# Making a batch takes milliseconds; the rest is for a machine that is short of processors.
_STUCK_S = 0.1


class Turns:
    """What all callers share. Safe for several threads; `of` gives what one caller's streams use.

    Args:
        count: How many may work at a time; as many as there are processors, and few, without it.
    """

    def __init__(self, count: int | None = None) -> None:
        self._lock = threading.Lock()
        self._free = count or min(_MOST, os.cpu_count() or 1)
        self._lent = 0
        self._moved_at = time.monotonic()
        # What the caller who got the last turn had used: whoever comes now begins there.
        self._clock_s = 0.0
        self._callers: WeakValueDictionary[str, CallerTurns] = WeakValueDictionary()
        # Those of whom somebody waits; a caller with nobody is not in it.
        self._waiting: list[CallerTurns] = []

    def of(self, caller: str) -> CallerTurns:
        """Return the turns of a caller, the same for all that hold them at a time."""
        with self._lock:
            found = self._callers.get(caller)
            if found is None:
                found = self._callers[caller] = CallerTurns(self)
            return found

    def take(self, mine: CallerTurns) -> threading.Lock | None:
        """Take a turn that is free; else return a place in the line, released with the turn."""
        with self._lock:
            if not mine.waiting:
                mine.used_s = max(mine.used_s, self._clock_s)
                if self._free:
                    self._free -= 1
                    return None
                self._waiting.append(mine)
            place = threading.Lock()
            place.acquire()
            mine.waiting.append(place)
            return place

    def borrow(self, mine: CallerTurns, place: threading.Lock) -> bool:
        """Take one turn more where none ends and nobody is ahead; return whether that is so."""
        with self._lock:
            now = time.monotonic()
            if now - self._moved_at < _STUCK_S or not mine.waiting or mine.waiting[0] is not place:
                return False
            if self._first() is not mine:
                return False
            self._remove(mine, place)
            self._lent += 1
            self._moved_at = now
            return True

    def leave(self, mine: CallerTurns, place: threading.Lock) -> bool:
        """Give a place up; return False where it has become a turn meanwhile."""
        with self._lock:
            if place not in mine.waiting:
                return False
            self._remove(mine, place)
            return True

    def end(self, mine: CallerTurns, seconds: float, *, stayed_s: float) -> None:
        """Give up a turn.

        Args:
            mine: Of the caller who had it.
            seconds: That it worked.
            stayed_s: The same, where it may have waited for a store.
        """
        with self._lock:
            self._moved_at = time.monotonic()
            mine.used_s += seconds
            if self._lent and stayed_s >= _STUCK_S:
                self._lent -= 1
            elif self._waiting:
                first = self._first()
                self._clock_s = max(self._clock_s, first.used_s)
                place = first.waiting[0]
                self._remove(first, place)
                place.release()
            else:
                self._free += 1
                self._clock_s = max(self._clock_s, mine.used_s - seconds)

    def _first(self) -> CallerTurns:
        if len(self._waiting) == 1:
            return self._waiting[0]
        return min(self._waiting, key=lambda caller: caller.used_s)

    def _remove(self, mine: CallerTurns, place: threading.Lock) -> None:
        mine.waiting.remove(place)
        if not mine.waiting:
            self._waiting.remove(mine)


class CallerTurns:
    """The turns of one caller's streams; `Turns.of` makes them.

    Attributes:
        waiting: Who waits, in the order in which they came. Belongs to `Turns`, as what follows.
        used_s: Time of all its turns, in the time of `Turns`.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.waiting: deque[threading.Lock] = deque()
        self.used_s = 0.0

    def turn(self) -> Turn:
        """Return a context in which the caller has a turn; entering it waits for that."""
        return Turn(self)

    def begin(self) -> None:
        """Wait for a turn; `end` must follow."""
        place = self._turns.take(self)
        if place is None:
            return
        while not place.acquire(timeout=_STUCK_S):
            if self._turns.borrow(self, place):
                return

    def queued(self) -> Generator[None, None, None]:
        """Wait for a turn, and yield now and then; `end` must follow, unless it is closed."""
        place = self._turns.take(self)
        if place is None:
            return
        try:
            while not place.acquire(timeout=_STUCK_S):
                yield
        except GeneratorExit:
            if not self._turns.leave(self, place):
                self._turns.end(self, 0.0, stayed_s=0.0)
            raise

    def end(self, seconds: float) -> None:
        """Give up a turn that took so long."""
        self._turns.end(self, seconds, stayed_s=seconds)

    def end_worked(self, seconds: float) -> None:
        """Give up a turn from `queued`, in which nothing waited."""
        self._turns.end(self, seconds, stayed_s=0.0)


class Turn:
    """A turn, as a context. A class, because two a batch as generators cost 4 us."""

    __slots__ = ("_began", "_turns")

    def __init__(self, turns: CallerTurns) -> None:
        self._turns = turns
        self._began = 0.0

    def __enter__(self) -> None:
        self._turns.begin()
        self._began = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._turns.end(time.monotonic() - self._began)
