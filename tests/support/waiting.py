"""Wait for what another thread or process brings about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")


def until(ask: Callable[[], _Answer], *, timeout_s: float = 30.0) -> _Answer:
    """Ask until there is an answer, or the time is over; return the last one."""
    deadline = time.monotonic() + timeout_s
    still = threading.Event()
    while not (answer := ask()) and time.monotonic() < deadline:
        still.wait(0.05)
    return answer
