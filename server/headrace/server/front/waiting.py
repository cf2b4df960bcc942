"""Calls that wait for their client: for its request, or for it to take the answer.

They hold no thread but some memory, so their wait is bounded.

Contract:

1. A call that has waited for ``timeout_s``, give or take a second, is given up.
2. There are never more than ``most``: the one that has waited longest gives way to the next. An
   honest client sends its request with the headers, so its calls are hardly ever that one.
3. `close` ends the thread; what waits then is left to gRPC, which cuts it.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

_LOOK_S = 0.25


class WaitingCall(Protocol):
    """A call that waits for its client."""

    def give_up(self, *, for_room: bool) -> None:
        """End it: because it has waited too long, or to make room for others."""


class Waiting:
    """All such calls of one server; safe for several threads.

    Args:
        most: How many there may be.
        timeout_s: How long one may wait.
        also: Called four times a second, with the thread that looks.
        now: Seconds of a clock that never goes back.

    Attributes:
        timeout_s: See above.
    """

    def __init__(
        self,
        *,
        most: int,
        timeout_s: float,
        also: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self.timeout_s = timeout_s
        self._also = also
        self._now = now
        self._lock = threading.Lock()
        # By age: all may wait for the same time.
        self._since: dict[WaitingCall, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="headrace-waiting", daemon=True)

    @property
    def count(self) -> int:
        """Return how many wait now."""
        return len(self._since)

    def start(self) -> None:
        """Start looking for calls that have waited too long."""
        self._thread.start()

    def add(self, waiter: WaitingCall) -> None:
        """Let a call wait from now on."""
        oldest = None
        with self._lock:
            self._since.pop(waiter, None)
            if len(self._since) >= self._most:
                oldest = next(iter(self._since))
                del self._since[oldest]
            self._since[waiter] = self._now()
        # Never under the lock: gRPC's are held by those who come here.
        if oldest is not None:
            oldest.give_up(for_room=True)

    def remove(self, waiter: WaitingCall) -> None:
        """Let a call wait no more; it need not have."""
        with self._lock:
            self._since.pop(waiter, None)

    def give_up_late(self) -> None:
        """Give up those that have waited too long."""
        before = self._now() - self.timeout_s
        with self._lock:
            late = [waiter for waiter, since in self._since.items() if since <= before]
            for waiter in late:
                del self._since[waiter]
        for waiter in late:
            waiter.give_up(for_room=False)

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.give_up_late()
            self._also()
