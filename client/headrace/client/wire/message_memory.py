"""Use the memory of gRPC's messages for batches, without a copy.

gRPC makes a `bytes` object for each message and passes it to the reader of the call. Nobody else
has it, so its memory may belong to the batch in it, and be written to. NumPy has a way to take over
bytes, keep them alive and write to them: the one that it uses for unpickling.

gRPC allocates memory from the C library several times for each message. By default that library
returns freed memory to the system before the next message arrives, unless the process has freed
larger blocks before.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 16
"""Bytes; the memory of a message starts at a multiple of that many, which is enough for any column:
CPython's objects do, and what a `bytes` holds starts 32 after the object."""

_PICKLE_VERSION = 1
_BYTE = np.dtype(np.uint8)
_KEPT_BYTES = 8 << 20
"""Twice the greatest message that gRPC's stock limit lets through."""


def memory_of(message: bytes) -> NDArray[np.uint8]:
    """Return the memory of a message, ``(size,) uint8``, writable.

    It lives for as long as a view of it does. NumPy copies what has 1000 bytes or fewer.

    Args:
        message: Nobody but the caller may have it, and the caller must not read what somebody may
            write to by the array.

    Source: ``ndarray.__setstate__``, https://numpy.org/doc/stable/reference/generated.
    """
    memory = np.empty(0, _BYTE)
    memory.__setstate__((_PICKLE_VERSION, (len(message),), _BYTE, False, message))  # type: ignore[arg-type] # a plain bool is what NumPy's own pickles have
    return memory


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep what messages free for those that follow, in this process.

    It gives the top of a heap back once twice the greatest block that was ever freed lies there, up
    to 64 MiB, and takes it again page by page: 3000 page faults a batch of 16 MiB, two thirds of
    the time that the kernel spent on it. After this it keeps twice `_KEPT_BYTES`. Source: glibc's
    mallopt(3), M_MMAP_THRESHOLD; with another C library this does nothing.
    """
    # Zeros come untouched from the system, so this takes no memory.
    bytes(_KEPT_BYTES)
