"""Run actions at their due time, in one thread for all of them.

Contract:

1. An action runs once, at its time or as soon as earlier actions have finished. So actions must not
   wait.
2. An action that is cancelled before its time does not run.
3. After `close` no action runs, and no thread is left.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headrace.errors import HeadraceError

_log = logging.getLogger(__name__)


class Alarm:
    """A scheduled action; `Alarms.after` makes one."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action

    def call_off(self) -> None:
        """Cancel the action."""
        self.action = None


class Repeated:
    """An action that runs repeatedly, a fixed time after its last run, even if that failed.

    Args:
        alarms: Runs the action.
        seconds: The time from one run to the next.
        action: The action.
    """

    def __init__(self, alarms: Alarms, seconds: float, action: Callable[[], object]) -> None:
        self._alarms = alarms
        self._seconds = seconds
        self._action = action
        self._is_off = False
        self._alarm = alarms.after(seconds, self._run)

    def call_off(self) -> None:
        """Cancel all further runs."""
        self._is_off = True
        self._alarm.call_off()

    def _run(self) -> None:
        # `call_off` may have come while this run was being scheduled, and called off the last one.
        if self._is_off:
            return
        try:
            self._action()
        finally:
            if not self._is_off:
                self._alarm = self._alarms.after(self._seconds, self._run)


class Alarms:
    """Runs actions at their due time; thread-safe. The contract is above."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="headrace-alarms", daemon=True)
        self._thread.start()

    def after(self, seconds: float, action: Callable[[], object]) -> Alarm:
        """Schedule an action to run after a number of seconds."""
        alarm = Alarm(action)
        with self._changed:
            entry = (time.monotonic() + seconds, next(self._numbers), alarm)
            heapq.heappush(self._due, entry)
            if self._due[0] is entry:
                self._changed.notify()
        return alarm

    def close(self) -> None:
        """Cancel all actions, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._due.clear()
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (alarm := self._next()) is not None:
            action = alarm.action
            if action is None:
                continue
            try:
                action()
            except Exception:  # noqa: BLE001 - the others are due all the same
                _log.exception("a scheduled action failed; this is a bug of headrace")

    def _next(self) -> Alarm | None:
        """Wait for the next action that is due and return it; None after `close`."""
        with self._changed:
            while not self._is_closed:
                left_s = self._due[0][0] - time.monotonic() if self._due else None
                if left_s is not None and left_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(left_s)
        return None


# How long a stream may take to end when it is told to (arbitrary: a few messages to a client that
# reads, and less than the two seconds within which it must have ended).
GRACE_S = 1.0


class Interruptible(Protocol):
    """The stream of a call."""

    def interrupt(self, error: HeadraceError) -> None:
        """End with an error, between two batches."""


class CallEnd:
    """Ends one call, from any thread.

    Args:
        alarms: Runs the forced end when it is due.
        cancel: Ends the call by force.

    Attributes:
        stream: The stream of the call, as soon as it exists.
    """

    def __init__(self, alarms: Alarms, cancel: Callable[[], object]) -> None:
        self._alarms = alarms
        self._cancel = cancel
        self.stream: Interruptible | None = None

    def end(self, error: HeadraceError) -> None:
        """End the call within `GRACE_S`: with an error, or by force."""
        if self.stream is not None:
            self.stream.interrupt(error)
        self._alarms.after(GRACE_S, self._cancel)
