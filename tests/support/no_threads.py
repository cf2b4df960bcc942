"""A moment in which this process can start no thread."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# More than a process can map.
_STACK_BYTES = 1 << 48
# What else a thread maps is negligible beside it.
_LARGE_STACK_BYTES = 1 << 30


@contextmanager
def no_threads() -> Iterator[None]:
    """Let the system refuse every new thread of Python; running ones stay."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)


@contextmanager
def few_threads(count: int) -> Iterator[None]:
    """Let the system start ``count`` more threads of Python, and refuse any after them."""
    before = threading.stack_size(_LARGE_STACK_BYTES)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    mapped = pages * resource.getpagesize()
    more = count * _LARGE_STACK_BYTES + _LARGE_STACK_BYTES // 2
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        threading.stack_size(before)
