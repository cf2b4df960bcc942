"""Store temporary data of a conversion on this machine's disk, in a file without a name.

The file is removed from its folder as soon as it is created, so the system frees its space when it
is closed or this process ends in any way. `ls` does not show it, but `df` does.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from typing import Self

from headrace.errors import ConfigurationError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class SpillFile:
    """Write bytes and read them back. Safe to use from several threads.

    Args:
        folder: The folder whose disk the file uses.

    Raises:
        ConfigurationError: No file can be created there.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._end = 0
        try:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - closed by `close`
                dir=folder, prefix="headrace-spill-", buffering=0
            )
        except OSError as error:
            raise ConfigurationError(
                f"no file can be created in {folder}, the folder for temporary data of a shuffle: "
                f"{error.strerror}; give another folder with spill_folder (--spill-folder)"
            ) from error

    def append(self, content: memoryview) -> int:
        """Write bytes and return their offset.

        Raises:
            ConfigurationError: The disk is full.
        """
        with self._lock:
            start = self._end
            self._end += len(content)
        done = 0
        try:
            while done < len(content):
                done += os.pwrite(self._file.fileno(), content[done:], start + done)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise ConfigurationError(
                f"{self._folder} is full: the shuffle has written {self._end:,} bytes of temporary "
                f"data there ({error.strerror}); free space, or give another folder with "
                "spill_folder (--spill-folder); nothing was written"
            ) from error
        return start

    def read(self, start: int, length: int) -> bytes:
        """Return bytes that `append` wrote at ``start``."""
        parts = []
        while length:
            part = os.pread(self._file.fileno(), length, start)
            if not part:
                raise ConfigurationError(f"the temporary data in {self._folder} ends too early")
            parts.append(part)
            start += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def size(self) -> int:
        """Return the number of bytes written."""
        return self._end

    def close(self) -> None:
        """Free the space."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def spill_folder_of(folder: str | None) -> str:
    """Return the folder for temporary data of a shuffle: the given one, or the system's."""
    return folder or tempfile.gettempdir()


def free_space(folder: str, needed: int) -> int:
    """Return the free bytes; refuse a shuffle for which they are too few.

    Args:
        folder: The folder for temporary data.
        needed: The bytes of temporary data; 0 if unknown.

    Raises:
        ConfigurationError: There is less space.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ConfigurationError(
            f"the folder {folder} for temporary data of a shuffle cannot be used: "
            f"{error.strerror}; give another one with spill_folder (--spill-folder)"
        ) from error
    if needed > free:
        raise ConfigurationError(
            f"a shuffle of {needed:,} bytes needs as much temporary space, but {folder} has "
            f"{free:,} free; free space, or give another folder with spill_folder "
            "(--spill-folder); nothing was written"
        )
    return free
