"""Look at a message of gRPC's as memory of a batch, without a copy.

gRPC makes a `bytes` object for each message and hands it to whoever reads the call: nobody else has
it, so its memory may belong to the batch that came in it, and be written to. NumPy has a way to
take over bytes in which it keeps them alive and writes to them: the one by which it unpickles.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PICKLE_VERSION = 1
_BYTE = np.dtype(np.uint8)


def memory_of(message: bytes) -> NDArray[np.uint8]:
    """Return the memory of a message, ``(size,) uint8``, writable.

    It lives for as long as a view of it does. NumPy copies what has 1000 bytes or fewer.

    Args:
        message: Nobody but the caller may have it, and the caller must not read it any more once
            somebody writes to the array.

    Source: ``ndarray.__setstate__``, https://numpy.org/doc/stable/reference/generated.
    """
    memory = np.empty(0, _BYTE)
    memory.__setstate__((_PICKLE_VERSION, (len(message),), _BYTE, False, message))  # type: ignore[arg-type] # a plain bool is what NumPy's own pickles have
    return memory
