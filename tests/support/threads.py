"""Call a function in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_Value = TypeVar("_Value")


@contextmanager
def threads_of(
    work: Callable[[_Value], object], values: Iterable[_Value], *, timeout_s: float = 240.0
) -> Iterator[None]:
    """Call a function in a thread for each value; wait for all at the end, for so long each."""
    threads = [
        threading.Thread(target=work, args=(value,), name=f"test-{number}", daemon=True)
        for number, value in enumerate(values)
    ]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(timeout_s)
    assert not any(thread.is_alive() for thread in threads), f"not done after {timeout_s:g} s"


def at_once(
    work: Callable[[_Value], object], values: Iterable[_Value], *, timeout_s: float = 240.0
) -> None:
    """Call a function in a thread for each value, and wait for all; see `threads_of`."""
    with threads_of(work, values, timeout_s=timeout_s):
        pass
