"""End a process that was asked to end, whatever it is still doing.

A drain cuts off streams and calls that are not finished in time, but cannot interrupt a C function
or a thread that waits for a store. Then the process is ended by force: by a thread, which logs it,
and if no thread can run any more, by the kernel.
"""

from __future__ import annotations

import logging
import os
import signal
import threading

# Streams and calls that were cut off have this long to end, so that the process ends within 2 s of
# its drain.
_ORDER_S = 1.2
_KERNEL_S = 0.6
# The longest time for timers: ten years.
_LONGEST_S = 3e8

_log = logging.getLogger(__name__)


def end_by(drain_s: float) -> None:
    """End this process soon after its drain, unless it ends before.

    Must be called in the main thread.

    Args:
        drain_s: How long the drain may take, in seconds from now.
    """
    ordered_s = min(drain_s, _LONGEST_S) + _ORDER_S
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, ordered_s + _KERNEL_S)
    timer = threading.Timer(ordered_s, _end)
    timer.name, timer.daemon = "headrace-hard-end", True
    timer.start()


def _end() -> None:
    _log.warning(
        "streams or calls that were cut off did not end; this process ends without waiting for them"
    )
    logging.shutdown()
    os._exit(1)
