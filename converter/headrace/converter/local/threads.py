"""Wait for the threads of a conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

_POLL_S = 0.2  # arbitrary: often enough for a progress bar


def watch(running: Sequence[Future[Any]], tell: Callable[[], None]) -> None:
    """Wait for all threads, or for the first that fails, and raise its error.

    Args:
        running: The futures to wait for.
        tell: Called a few times a second, in this thread.
    """
    left = set(running)
    while left:
        done, left = wait(left, timeout=_POLL_S, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        tell()
