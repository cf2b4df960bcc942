"""Lock a folder for one process at a time, briefly.

1. If the file system has locks, one of these is used; it is released when its holder ends.
2. If it has none, like some FUSE mounts, a file serves as the lock: it is created exclusively, in
   one write, and removed. A holder that dies leaves the file, and it stays, because a slow holder
   cannot be distinguished from a dead one. The error after the wait names the file, its age and
   its owner.
3. In both cases the deadline bounds the wait.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.errors import StoreUnavailableError

_POLL_S = 0.02
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOLCK)


@contextlib.contextmanager
def locked(path: Path, *, deadline_s: float) -> Iterator[None]:
    """Hold the lock of a folder.

    Args:
        path: The path of the lock file in the folder.
        deadline_s: How long to wait for another holder, in seconds.

    Raises:
        StoreUnavailableError: Another process held it for longer.
        OSError: The file system refused.
    """
    # Not opened to append, which file systems that only accept whole files refuse.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            _wait(lambda: _try_lock(descriptor), path, deadline_s)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            with held_by_name(path.with_name(f"{path.name}.held"), deadline_s=deadline_s):
                yield
        else:
            yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held_by_name(path: Path, *, deadline_s: float) -> Iterator[None]:
    """Hold a lock that is the file ``path`` itself; takes and raises what `locked` does."""
    _wait(lambda: _try_make(path), path, deadline_s)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _wait(attempt: Callable[[], bool], path: Path, deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while not attempt():
        if time.monotonic() > deadline:
            raise StoreUnavailableError(
                f"{path} has been locked by another process for {deadline_s:.0f} s{_holder(path)}",
                url=str(path.parent),
            )
        time.sleep(_POLL_S)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_make(path: Path) -> bool:
    try:
        file = path.open("xb")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
    except BaseException:
        # Otherwise the file would stay, and nobody could take the lock.
        path.unlink(missing_ok=True)
        raise
    return True


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        holder = path.read_text()
        if holder:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
            return f", {holder}, since {since}; if that process no longer exists, remove the file"
    return "; look for a process that is stuck"
