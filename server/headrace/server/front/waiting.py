"""Calls that wait for their client to send a request or to read an answer.

They hold no threads but some memory, so their waits are bounded.

Contract:

1. A call that has waited for about ``timeout_s`` is given up.
2. There are never more than ``most``: for a new one, the line with the most waiting calls gives up
   the one that has waited longest. Thus a caller with many calls ends none of another.
3. `close` ends the thread; gRPC cuts the calls that wait then.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

_LOOK_S = 0.25

_log = logging.getLogger(__name__)


class WaitingCall(Protocol):
    """A call that waits for its client."""

    @property
    def line(self) -> str:
        """The caller or the network that it belongs to."""

    def give_up(self, *, for_room: bool) -> None:
        """End the call, either to make room for others or because it has waited too long."""


class Waiting:
    """The waiting calls of one server; thread-safe.

    Args:
        most: The most waiting calls.
        timeout_s: How long a call may wait.
        also: Functions to call four times a second, in the same thread.
        now: Returns monotonic seconds.

    Attributes:
        timeout_s: See above.
    """

    def __init__(
        self,
        *,
        most: int,
        timeout_s: float,
        also: Sequence[Callable[[], None]] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self.timeout_s = timeout_s
        self._also = also
        self._now = now
        self._lock = threading.Lock()
        # By line, each ordered by age, because all may wait equally long; none is empty.
        self._lines: dict[str, dict[WaitingCall, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="headrace-waiting", daemon=True)

    @property
    def count(self) -> int:
        """Number of waiting calls."""
        return sum(map(len, self._lines.values()))

    def start(self) -> None:
        """Start the thread that looks for calls that have waited too long."""
        self._thread.start()

    def add(self, waiter: WaitingCall) -> None:
        """Add a call that waits from now on."""
        oldest = None
        with self._lock:
            self._drop(waiter)
            if self.count >= self._most:
                _, longest = max(self._lines.items(), key=lambda each: len(each[1]))
                oldest = next(iter(longest))
                self._drop(oldest)
            self._lines.setdefault(waiter.line, {})[waiter] = self._now()
        # Never under the lock, because callers of this method may hold locks of gRPC.
        if oldest is not None:
            oldest.give_up(for_room=True)

    def remove(self, waiter: WaitingCall) -> None:
        """Remove a call, if it waits."""
        with self._lock:
            self._drop(waiter)

    def give_up_late(self) -> None:
        """Give up calls that have waited too long."""
        before = self._now() - self.timeout_s
        with self._lock:
            waiting = [each for line in self._lines.values() for each in line.items()]
            late = [waiter for waiter, since in waiting if since <= before]
            for waiter in late:
                self._drop(waiter)
        for waiter in late:
            waiter.give_up(for_room=False)

    def _drop(self, waiter: WaitingCall) -> None:
        line = self._lines.get(waiter.line, {})
        line.pop(waiter, None)
        if not line:
            self._lines.pop(waiter.line, None)

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            for work in (self.give_up_late, *self._also):
                try:
                    work()
                except Exception:  # noqa: BLE001 - the other calls must be given up all the same
                    _log.exception("calls were not looked at; this is a bug of headrace")
