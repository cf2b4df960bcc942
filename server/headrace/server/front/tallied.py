"""Log what may happen very often, in one line for many occurrences."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_EVERY_S = 10.0


class TalliedLog:
    """Logs at most one line in ten seconds, with how often it happened since the last.

    Args:
        log: The log to write to.
        text: What happened; ``%d`` stands for how often, ``%s`` for the last of them.
        now: Seconds of a clock that never goes back.
    """

    def __init__(
        self, log: logging.Logger, text: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._text = text
        self._now = now
        self._lock = threading.Lock()
        self._count = 0
        self._said_at = -_EVERY_S

    def add(self, which: str) -> None:
        """Count one, and log a line unless there was one a moment ago."""
        with self._lock:
            self._count += 1
            now = self._now()
            if now < self._said_at + _EVERY_S:
                return
            self._said_at, count, self._count = now, self._count, 0
        self._log.warning(self._text, count, which)
