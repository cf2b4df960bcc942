"""Run the pieces of a conversion in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

_T = TypeVar("_T")

_POLL_S = 0.2  # arbitrary: often enough for a progress bar


def run_each(
    run: Callable[[int], _T],
    count: int,
    *,
    threads: int,
    name: str,
    stop: threading.Event,
    tell: Callable[[], None],
) -> list[_T]:
    """Call a function with each number below a count, and return its results.

    After a failure or an interrupt no further call starts, and those in progress are waited for.

    Args:
        run: The function; it may end early when ``stop`` is set.
        count: The number of calls.
        threads: The number of calls at once.
        name: The first part of the names of threads.
        stop: Set at the end, whatever happened.
        tell: Called a few times a second, in this thread.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        running = [pool.submit(run, number) for number in range(count)]
        left = set(running)
        while left:
            done, left = wait(left, timeout=_POLL_S, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            tell()
        return [future.result() for future in running]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
