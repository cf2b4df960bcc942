"""`bytes` that are written after they are made.

gRPC takes messages as `bytes` alone, and a batch that was gathered elsewhere would be copied once
more. Python's C API lets whoever just made a `bytes` object write to it, as long as nobody else has
it: see ``PyBytes_FromStringAndSize`` with NULL.
"""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np
from numpy.typing import NDArray

_WRITABLE = 0x200  # PyBUF_WRITE
_KEPT_BYTES = 64 << 20  # a batch of 16 MiB, its copies in gRPC, and the one after it
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_new = ctypes.pythonapi.PyBytes_FromStringAndSize
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
_address = ctypes.pythonapi.PyBytes_AsString
_address.restype, _address.argtypes = ctypes.c_void_p, (ctypes.py_object,)
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype, _view.argtypes = (
    ctypes.py_object,
    (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int),
)


def fresh_bytes(size: int) -> tuple[bytes, NDArray[np.uint8]]:
    """Return new bytes with whatever their memory held, and a way to write them.

    Args:
        size: How many, >= 2: Python keeps shorter ones for all to share.

    Returns:
        The bytes, and ``(size,) uint8`` over them. The array does not keep the bytes alive, and
        must be gone before anybody else gets them.
    """
    fresh, address = raw_bytes(size)
    return fresh, np.frombuffer(_view(address, size, _WRITABLE), np.uint8)


def raw_bytes(size: int) -> tuple[bytes, int]:
    """Return new bytes as `fresh_bytes` does, and the address of the first."""
    assert size > 1
    fresh: bytes = _new(None, size)
    return fresh, _address(fresh)


def give_freed_memory_back() -> None:
    """Give the system what the C library keeps of memory that was freed, from between what is used.

    It takes milliseconds. With another C library than glibc nothing happens. *Source:*
    malloc_trim(3).
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let the C library keep what batches free for those that follow; call it before threads begin.

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
    # The greatest that there may be: whatever is larger is the system's at once, as ever.
    mallopt(_MMAP_THRESHOLD, 32 << 20)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
