"""Show on a terminal, in a line that is written again and again, what goes on and how long."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

_EVERY_S = 0.2
_CLEAR = "\r\x1b[K"
_WHEEL = "|/-\\"


class Progress:
    """One line below everything else, while the context lasts; nothing where nobody looks on."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._text = ""
        self._thread = threading.Thread(target=self._run, name="demo-progress", daemon=True)

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def show(self, text: str) -> None:
        """Say what goes on, in a few words."""
        self._text = text

    def pause(self) -> threading.RLock:
        """Return the lock that others hold while they print, after removing the line."""
        with self._lock:
            if self._thread.is_alive():
                sys.stdout.write(_CLEAR)
        return self._lock

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(_EVERY_S):
            number += 1
            seconds = time.monotonic() - self._began
            with self._lock:
                line = f"   {_WHEEL[number % 4]} {seconds:.0f} s  {self._text}"
                sys.stdout.write(f"{_CLEAR}{line[:78]}")
                sys.stdout.flush()
        with self._lock:
            sys.stdout.write(_CLEAR)
            sys.stdout.flush()
