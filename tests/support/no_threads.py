"""A moment in which this process can start no thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

# More than a process can map.
_STACK_BYTES = 1 << 48


@contextmanager
def no_threads() -> Iterator[None]:
    """Let the system refuse every new thread of Python; running ones stay."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)
