"""`bytes` that are written after they are made.

gRPC takes messages as `bytes` alone, and a batch that was gathered elsewhere would be copied once
more. Python's C API lets whoever just made a `bytes` object write to it, as long as nobody else has
it: see ``PyBytes_FromStringAndSize`` with NULL.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

_WRITABLE = 0x200  # PyBUF_WRITE
_KEPT_BYTES = 8 << 20  # some batches of the usual size

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


def keep_freed_memory() -> None:
    """Let the C library keep what batches free for those that follow.

    It gives the top of its heap back to the system once twice the greatest block that was ever
    freed lies there, and then takes it again page by page: 10 to 24 page faults a batch of 0.7 MB.
    After this it keeps twice `_KEPT_BYTES`. Source: glibc's mallopt(3), M_MMAP_THRESHOLD; with
    another C library this does nothing.
    """
    bytes(_KEPT_BYTES)
