"""Hold back callers that reset many calls before the server handles them.

A client may have many calls on a connection (``grpc.max_concurrent_streams``). A client that resets
them at once could open the next as soon as the last is cleaned up: as many as Python can look at,
ahead of the calls of all others.

Contract:

1. A reset call is kept for about ``keep_s``, and counts among the calls of its connection until
   then. So a connection brings no more calls in that time than its limit.
2. A caller floods the server if more than ``few`` of its calls were reset within ``keep_s``. Its
   further calls are set aside for as long, or longer if more are due than can continue at a time;
   then they are answered like any other. A call that was reset meanwhile is not answered, and has
   cost the server only a look at its headers.
3. There are never more than ``most`` kept calls; the oldest is dropped first.
4. After `close` no call is kept.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

KEEP_S = 4.0
"""With 2,048 calls a connection, 512 calls a second: a twentieth of what Python can look at."""

MOST_KEPT = 8192
"""Arbitrary; each call takes about 11 KiB (measured)."""

FEW = 512
"""Calls in `KEEP_S` (arbitrary): the ranks of most jobs, which may all be killed at once."""

AT_A_TIME = 64
"""Calls whose client still waits, four times a second (arbitrary)."""


def _nothing() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Kept:
    """A call that has ended or was set aside.

    Attributes:
        since: When it was kept.
        caller: The caller of the call.
        call: A reference that keeps gRPC from cleaning up the call; None if none is needed.
        resume: Continues the call; returns whether its client still waits.
    """

    since: float
    caller: str
    call: object
    resume: Callable[[], bool] = _nothing


class Floods:
    """The kept calls of one server; thread-safe.

    Args:
        most: The most calls to keep.
        keep_s: How long to keep each, in seconds.
        few: How many calls of a caller may be reset in that time before it floods.
        at_a_time: How many calls with a waiting client `clear_old` continues.
        now: Returns monotonic seconds.
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
        self._resets: deque[_Kept] = deque()
        self._reset_counts: Counter[str] = Counter()
        self._aside: deque[_Kept] = deque()

    @property
    def count(self) -> int:
        """Number of kept calls, including those that are only counted."""
        return len(self._resets) + len(self._aside)

    def is_flooding(self, caller: str) -> bool:
        """Return whether to set a caller's calls aside."""
        return self._reset_counts[caller] > self._few

    def count_reset(self, caller: str, call: object = None) -> None:
        """Count a reset call, and keep a reference to it if one is given."""
        self._keep(_Kept(self._now(), caller, call))

    def set_aside(self, caller: str, resume: Callable[[], bool]) -> None:
        """Continue a call later, in any thread; not at all if `close` comes first.

        Args:
            caller: The caller of the call.
            resume: Continues the call; returns whether its client still waits.
        """
        self._keep(_Kept(self._now(), caller, None, resume))

    def clear_old(self) -> None:
        """Drop calls that were kept long enough, and continue some that were set aside."""
        before = self._now() - self._keep_s
        old: list[_Kept] = []
        with self._lock:
            while self._resets and self._resets[0].since <= before:
                old.append(self._popped(self._resets))
        # Not under the lock, because this cleans calls up or continues them.
        old.clear()
        resumed = 0
        while resumed < self._at_a_time and (kept := self._due(before)):
            resumed += kept.resume()

    def close(self) -> None:
        """Drop all calls, and keep none from now on."""
        with self._lock:
            self._most, kept = 0, (self._resets, self._aside)
            self._resets, self._aside = deque(), deque()
            self._reset_counts.clear()
        del kept

    def _keep(self, kept: _Kept) -> None:
        oldest = None
        with self._lock:
            if not self._most:
                return
            if self.count >= self._most:
                oldest = self._oldest()
            if kept.resume is _nothing:
                self._resets.append(kept)
                self._reset_counts[kept.caller] += 1
            else:
                self._aside.append(kept)
        # Not under the lock, because this cleans the call up or continues it.
        if oldest is not None:
            oldest.resume()

    def _due(self, before: float) -> _Kept | None:
        with self._lock:
            is_due = bool(self._aside) and self._aside[0].since <= before
            return self._aside.popleft() if is_due else None

    def _oldest(self) -> _Kept:
        if not self._aside or (self._resets and self._resets[0].since <= self._aside[0].since):
            return self._popped(self._resets)
        return self._aside.popleft()

    def _popped(self, kept: deque[_Kept]) -> _Kept:
        oldest = kept.popleft()
        self._reset_counts[oldest.caller] -= 1
        if not self._reset_counts[oldest.caller]:
            del self._reset_counts[oldest.caller]
        return oldest
