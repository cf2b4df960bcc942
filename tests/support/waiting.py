"""Wait for what another thread or process brings about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")


def until(
    ask: Callable[[], _Answer], *, timeout_s: float = 120.0, every_s: float = 0.05
) -> _Answer:
    """Ask until there is an answer, or the time is over; return the last one."""
    deadline = time.monotonic() + timeout_s
    still = threading.Event()
    while not (answer := ask()) and time.monotonic() < deadline:
        still.wait(every_s)
    return answer


def seconds_until(is_so: Callable[[], bool], *, timeout_s: float = 120.0) -> float:
    """Return how long something took, but for the time in which this process stood still.

    For bounds that a free machine must keep: of a moment that a busy one takes the processor away
    for, a tenth of a second counts.

    Raises:
        AssertionError: It is not so when the time is over.
    """
    still, took_s = threading.Event(), 0.0
    began = before = time.monotonic()
    while not is_so():
        still.wait(0.02)
        now = time.monotonic()
        assert now - began < timeout_s, f"not so after {timeout_s:g} s"
        took_s += min(now - before, 0.1)
        before = now
    return took_s
