"""Use the memory of gRPC's messages for batches, without a copy.

gRPC makes a `bytes` object for each message and passes it to the reader of the call. There is no
other reference, so its memory may belong to the batch in it, and be written to. NumPy can take over
such bytes, keep them alive and make them writable: it does so when it unpickles arrays.

gRPC allocates memory from the C library several times for each message. By default that library
returns freed memory to the system before the next message arrives, unless the process has freed
larger blocks before.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 16
"""Bytes; the memory of a message starts at a multiple of this, which is enough for any column:
CPython aligns objects to it, and the content of a `bytes` starts 32 bytes into the object."""

_PICKLE_VERSION = 1
_BYTE = np.dtype(np.uint8)
_KEPT_BYTES = 8 << 20
"""Twice the largest message that gRPC's default limit allows."""


def memory_of(message: bytes) -> NDArray[np.uint8]:
    """Return the memory of a message, ``(size,) uint8``, writable.

    It exists as long as a view of it does. NumPy copies messages of up to 1000 bytes.

    Args:
        message: There must be no other reference to it, and the caller must not read it where the
            array may be written to.

    Source: ``ndarray.__setstate__``, https://numpy.org/doc/stable/reference/generated.
    """
    memory = np.empty(0, _BYTE)
    memory.__setstate__((_PICKLE_VERSION, (len(message),), _BYTE, False, message))  # type: ignore[arg-type] # a plain bool is what NumPy's own pickles have
    return memory


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library of this process keep freed memory of messages for later messages.

    It returns the top of a heap to the system once twice the largest block ever freed is free
    there, up to 64 MiB, and then takes it again page by page: 3000 page faults for a batch of 16
    MiB, two thirds of the kernel's time for it. After this call it keeps twice `_KEPT_BYTES`.
    Source: glibc's mallopt(3), M_MMAP_THRESHOLD; with another C library this does nothing.
    """
    # The system provides zeros without touching memory, so this takes none.
    bytes(_KEPT_BYTES)
