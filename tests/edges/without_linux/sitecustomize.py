"""Take from Python what it has on Linux alone, in this process and all that it starts.

Put the folder on PYTHONPATH. It comes as near to a Mac as Linux can: `sys.platform`, the C
library and ``/proc`` stay Linux's.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import signal
import socket

_LINUX_ALONE = {
    os: (
        *("memfd_create", "eventfd", "eventfd_read", "eventfd_write", "pidfd_open", "splice"),
        *("copy_file_range", "posix_fadvise", "posix_fallocate", "sched_getaffinity"),
        *("sched_setaffinity", "O_TMPFILE", "O_PATH", "O_DIRECT", "setresuid", "getrandom"),
    ),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_GROW", "F_SEAL_SEAL", "F_SEAL_SHRINK"),
    mmap: ("MADV_HUGEPAGE", "MADV_DONTFORK", "MAP_POPULATE"),
    select: ("epoll",),
    signal: ("sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGRTMAX", "SIGPWR"),
    socket: ("SO_PEERCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "MSG_NOSIGNAL", "SO_BINDTODEVICE"),
}

for _module, _names in _LINUX_ALONE.items():
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
