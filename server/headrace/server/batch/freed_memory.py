"""Tell the C library what to do with memory that batches free."""

from __future__ import annotations

import contextlib
import ctypes

_KEPT_BYTES = 64 << 20  # a batch of 16 MiB, its copies in gRPC, and the one after it
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def give_freed_memory_back() -> None:
    """Return freed memory that the C library keeps to the system, also from between used parts.

    It takes milliseconds. With another C library than glibc nothing happens. *Source:*
    malloc_trim(3).
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let the C library keep the memory of old batches for new ones; call it before threads start.

    It gives the top of a heap back to the system, and takes it again page by page, once more lies
    there than twice the greatest block that was ever freed; and it has several heaps, so that a
    stream's threads find little of what others have freed. A first batch of 16 MiB met 7,000 page
    faults, and the kernel took 20 ms for them. After this there is one heap, or two where a thread
    has begun before, and it keeps `_KEPT_BYTES`. It is so for the whole process; with another C
    library than glibc nothing happens. *Source:* mallopt(3) and its <malloc.h>.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_ARENA_MAX, 1)
    # The greatest value allowed: larger memory is returned to the system at once, as before.
    mallopt(_MMAP_THRESHOLD, 32 << 20)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
