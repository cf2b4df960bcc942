"""End a DataLoader worker whose main process is gone.

PyTorch's workers check whether their parent still lives. With ``forkserver`` their parent is the
fork server, which in turn lives as long as any worker: after a SIGKILL of the main process they
would stay forever, and a private server with them.
"""

from __future__ import annotations

import _thread
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import wait

_IN_ORDER_S = 30.0
"""Most seconds that ending in good order may take; nobody is left who would mind a hard end, but
for its temporary files, and a busy machine takes long."""

_watched_in: set[int] = set()


def end_with_main_process() -> None:
    """Let this process end when the one that started it is gone; does nothing in a main process."""
    main = multiprocessing.parent_process()
    if main is None or os.getpid() in _watched_in:
        return
    _watched_in.add(os.getpid())
    threading.Thread(
        target=_end_after, args=(main.sentinel,), name="headrace-main-watch", daemon=True
    ).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    # Like Ctrl-C, after which workers end in good order and remove their temporary files.
    _thread.interrupt_main()
    time.sleep(_IN_ORDER_S)
    os._exit(1)
