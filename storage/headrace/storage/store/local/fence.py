"""Keep reads and writes inside a folder, even where links in it lead out.

Whoever may write a folder may put a link to any file of the machine into it. The folder itself may
be a link, since whoever named the folder meant what is there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# A pipe that somebody put there must not make its readers wait.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class LeadsOutError(Exception):
    """A path leads out of the folder."""


class Fence:
    """The folder that nothing may lead out of.

    Args:
        root: An absolute path; need not exist yet.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._inside = _prefix(root)

    def open(self, path: str) -> int:
        """Open a file for reading, and return its descriptor.

        Where it lies is asked once it is open, so nobody can change a link in between.

        Raises:
            LeadsOutError: It lies outside.
            OSError: It cannot be opened.
        """
        descriptor = _open_without_links(path)
        if descriptor >= 0:
            return descriptor
        descriptor = os.open(path, _READ)
        try:
            found = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - takes half the time
        except OSError:  # a system that cannot tell
            found = os.path.realpath(path)
        if not found.startswith(self._inside) and not self._has_moved(found):
            os.close(descriptor)
            raise LeadsOutError
        return descriptor

    def has(self, path: str | Path) -> bool:
        """Return whether a path lies inside, where its links lead; it need not exist."""
        found = os.path.realpath(path)
        return found.startswith(self._inside) or self._has_moved(found)

    def _has_moved(self, found: str) -> bool:
        """Return whether a path lies inside the folder where that is now."""
        self._inside = _prefix(self._root)
        return f"{found}/".startswith(self._inside)


def _prefix(root: str) -> str:
    return f"{os.path.realpath(root).rstrip('/')}/"


class _OpenHow(ctypes.Structure):
    """The argument of `openat2`.

    Source: linux/openat2.h.
    """

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_OPENAT2 = 437  # its number on every processor
_AT_FDCWD = -100
_RESOLVE_NO_SYMLINKS = 0x04
_HOW = _OpenHow(_READ, 0, _RESOLVE_NO_SYMLINKS)


def _open_without_links(path: str) -> int:
    """Open a file that no link leads to, with one call; return -1 if that cannot be done so."""
    if sys.platform != "linux":
        return -1
    sys.audit("open", path, None, _READ)
    descriptor: int = _syscall(_OPENAT2, _AT_FDCWD, os.fsencode(path), _HOW_AT, _HOW_BYTES)
    return descriptor


_syscall = ctypes.CDLL(None).syscall
_HOW_AT = ctypes.byref(_HOW)
_HOW_BYTES = ctypes.sizeof(_HOW)
