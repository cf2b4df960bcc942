"""Run actions at their due time, in one thread for all of them.

Contract:

1. An action is run once, at its time or as soon after it as earlier actions are done; so no action
   may wait for anything.
2. An action that is called off before its time is not run.
3. `close` does nothing more, and leaves no thread behind.

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
    """An action that is to be run; `Alarms.after` makes one."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action

    def call_off(self) -> None:
        """Leave it undone."""
        self.action = None


class Repeated:
    """An action that is run again and again, a fixed time after its last run.

    Args:
        alarms: Do it.
        seconds: The time between two runs.
        action: What is done.
    """

    def __init__(self, alarms: Alarms, seconds: float, action: Callable[[], object]) -> None:
        self._alarms = alarms
        self._seconds = seconds
        self._action = action
        self._is_off = False
        self._alarm = alarms.after(seconds, self._run)

    def call_off(self) -> None:
        """Do it no more."""
        self._is_off = True
        self._alarm.call_off()

    def _run(self) -> None:
        self._action()
        if not self._is_off:
            self._alarm = self._alarms.after(self._seconds, self._run)


class Alarms:
    """Runs actions at their due time; safe for several threads. The contract is above."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="headrace-alarms", daemon=True)
        self._thread.start()

    def after(self, seconds: float, action: Callable[[], object]) -> Alarm:
        """Run an action after some seconds."""
        alarm = Alarm(action)
        with self._changed:
            entry = (time.monotonic() + seconds, next(self._numbers), alarm)
            heapq.heappush(self._due, entry)
            if self._due[0] is entry:
                self._changed.notify()
        return alarm

    def close(self) -> None:
        """Do nothing more."""
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
        """Return what is due, when it is; None when there will be nothing."""
        with self._changed:
            while not self._is_closed:
                left_s = self._due[0][0] - time.monotonic() if self._due else None
                if left_s is not None and left_s <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(left_s)
        return None


# How long a stream may take to end once it is told to (arbitrary: some messages to a client that
# reads, and less than the two seconds within which it must be over).
GRACE_S = 1.0


class Interruptible(Protocol):
    """What a call does: a stream."""

    def interrupt(self, error: HeadraceError) -> None:
        """End with an error, between two batches."""


class CallEnd:
    """Ends one call, from any thread.

    Args:
        alarms: Runs the cut when it is due.
        cancel: Ends the call by force.

    Attributes:
        stream: The stream that the call sends, as soon as it exists.
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
