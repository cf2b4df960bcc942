"""Hold back callers who reset many calls before anybody has looked at them.

A client may have many calls on a connection (``grpc.max_concurrent_streams``), and one that resets
them at once could open the next as soon as the last is cleared away: as many as Python can look at,
before all that other callers ask.

Contract:

1. A call that was reset is kept for ``keep_s``, give or take a moment, and counts among the calls
   of its connection until then: one connection brings no more of them than its limit in that time.
2. A caller floods the server if more than ``few`` of its calls were reset within ``keep_s``. Each
   of its further calls is set aside for as long, or longer if more are due than can go on at a
   time; then it is answered as any other. A call that was reset meanwhile is not answered, and has
   cost the server no more than a look at its headers.
3. All that are kept are never more than ``most``: the oldest gives way.
4. After `close` none is kept.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

KEEP_S = 4.0
"""With 2,048 calls a connection 512 a second, a twentieth of what Python can look at."""

MOST_KEPT = 8192
"""Each takes some 11 KiB (measured, arbitrary)."""

FEW = 512
"""In `KEEP_S`: the ranks of most jobs, all of which may be killed at once (arbitrary)."""

AT_A_TIME = 64
"""Four times a second, of those that somebody waits for (arbitrary)."""


def _nothing() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Kept:
    """A call that is over, or is gone on with.

    Attributes:
        since: When it was kept.
        caller: The caller that it belongs to.
        call: Referred to, so that gRPC does not clear it away; None where that need not be.
        go_on: Goes on with it; returns whether somebody still waits for it.
    """

    since: float
    caller: str
    call: object
    go_on: Callable[[], bool] = _nothing


class Floods:
    """All such calls of one server; safe for several threads.

    Args:
        most: How many calls may be kept.
        keep_s: How long each is kept.
        few: How many of one caller may be reset in that time before it floods.
        at_a_time: How many `clear_old` continues with that somebody still waits for.
        now: Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        *,
        most: int = MOST_KEPT,
        keep_s: float = KEEP_S,
        few: int = FEW,
        at_a_time: int = AT_A_TIME,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._keep_s = keep_s
        self._few = few
        self._at_a_time = at_a_time
        self._now = now
        self._lock = threading.Lock()
        self._over: deque[_Kept] = deque()
        self._over_of: Counter[str] = Counter()
        self._aside: deque[_Kept] = deque()

    @property
    def count(self) -> int:
        """Return how many are kept now, those included that were only counted."""
        return len(self._over) + len(self._aside)

    def is_flooding(self, caller: str) -> bool:
        """Return whether a caller's calls are to be set aside."""
        return self._over_of[caller] > self._few

    def over(self, caller: str, call: object = None) -> None:
        """Count a call that was reset, and keep it if it is given."""
        self._keep(_Kept(self._now(), caller, call))

    def set_aside(self, caller: str, go_on: Callable[[], bool]) -> None:
        """Go on with a call later, in any thread; never, if `close` comes first.

        Args:
            caller: The caller that it belongs to.
            go_on: Goes on with it; returns whether somebody still waits for it.
        """
        self._keep(_Kept(self._now(), caller, None, go_on))

    def clear_old(self) -> None:
        """Clear away what was kept long enough, and continue with some that were set aside."""
        before = self._now() - self._keep_s
        old: list[_Kept] = []
        with self._lock:
            while self._over and self._over[0].since <= before:
                old.append(self._popped(self._over))
        # Not under the lock: they are cleared away, or go on, here.
        old.clear()
        gone_on = 0
        while gone_on < self._at_a_time and (kept := self._due(before)):
            gone_on += kept.go_on()

    def close(self) -> None:
        """Clear all away, and keep none from now on."""
        with self._lock:
            self._most, kept = 0, (self._over, self._aside)
            self._over, self._aside = deque(), deque()
            self._over_of.clear()
        del kept

    def _keep(self, kept: _Kept) -> None:
        oldest = None
        with self._lock:
            if not self._most:
                return
            if self.count >= self._most:
                oldest = self._oldest()
            if kept.go_on is _nothing:
                self._over.append(kept)
                self._over_of[kept.caller] += 1
            else:
                self._aside.append(kept)
        # Not under the lock: it is cleared away, or goes on, here.
        if oldest is not None:
            oldest.go_on()

    def _due(self, before: float) -> _Kept | None:
        with self._lock:
            is_due = bool(self._aside) and self._aside[0].since <= before
            return self._aside.popleft() if is_due else None

    def _oldest(self) -> _Kept:
        if not self._aside or (self._over and self._over[0].since <= self._aside[0].since):
            return self._popped(self._over)
        return self._aside.popleft()

    def _popped(self, kept: deque[_Kept]) -> _Kept:
        oldest = kept.popleft()
        self._over_of[oldest.caller] -= 1
        if not self._over_of[oldest.caller]:
            del self._over_of[oldest.caller]
        return oldest
