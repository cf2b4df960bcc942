"""End a DataLoader worker whose main process is gone.

PyTorch's workers check whether their parent is still alive. With ``forkserver``, the parent is the
fork server, which itself stays as long as any worker: after a SIGKILL of the main process, workers
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
"""Most seconds for a clean exit, which removes temporary files; then the process ends at once. A
busy machine takes long."""

_watched_in: set[int] = set()


def end_with_main_process() -> None:
    """End this process when the one that started it is gone; do nothing in a main process."""
    main = multiprocessing.parent_process()
    if main is None or os.getpid() in _watched_in:
        return
    _watched_in.add(os.getpid())
    threading.Thread(
        target=_end_after, args=(main.sentinel,), name="headrace-main-watch", daemon=True
    ).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    # Like Ctrl-C, on which workers exit cleanly and remove their temporary files.
    _thread.interrupt_main()
    time.sleep(_IN_ORDER_S)
    os._exit(1)
