"""Configure what the C library does with memory that batches free."""

from __future__ import annotations

import contextlib
import ctypes

_KEPT_BYTES = 64 << 20  # a batch of 16 MiB, its copies in gRPC, and the next batch
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def give_freed_memory_back() -> None:
    """Return freed memory from the C library to the system, even from between used parts.

    This takes milliseconds. It does nothing with C libraries other than glibc. *Source:*
    malloc_trim(3).
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Make the C library keep the memory of old batches for new ones; call it before threads start.

    By default it returns the top of a heap to the system once that has more than twice the largest
    block ever freed, and later takes it again page by page. It also has several heaps, so a
    stream's threads find little of what other threads freed. A first batch of 16 MiB caused 7,000
    page faults, for which the kernel took 20 ms. After this call there is one heap, or two if a
    thread started before, and it keeps `_KEPT_BYTES`. This affects the whole process, and does
    nothing with C libraries other than glibc. *Source:* mallopt(3) and its <malloc.h>.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_ARENA_MAX, 1)
    # The highest value allowed; larger blocks are still returned to the system at once.
    mallopt(_MMAP_THRESHOLD, 32 << 20)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
