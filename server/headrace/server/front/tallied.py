"""Log frequent events with one line for many occurrences."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_EVERY_S = 10.0


class TalliedLog:
    """Logs at most one line in ten seconds, with the number of occurrences since the last line.

    Args:
        log: The log to write to.
        text: The message; ``%d`` stands for the number, ``%s`` for the last occurrence.
        now: Returns monotonic seconds.
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
        """Count an occurrence, and log a line unless the last one is recent."""
        with self._lock:
            self._count += 1
            now = self._now()
            if now < self._said_at + _EVERY_S:
                return
            self._said_at, count, self._count = now, self._count, 0
        self._log.warning(self._text, count, which)
