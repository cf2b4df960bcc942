"""The end of a process that was asked to end, whatever it still does.

A drain cuts what is not over in time, but cannot cut a C function, or a thread that waits for a
store. So the process ends by force then, twice: by a thread, which says so in the log, and if none
gets to run any more by the kernel.
"""

from __future__ import annotations

import logging
import os
import signal
import threading

# What was cut has so long to end in order, and the process ends within 2 s of its drain.
_ORDER_S = 1.2
_KERNEL_S = 0.6
# What timers can take; ten years.
_LONGEST_S = 3e8

_log = logging.getLogger(__name__)


def end_by(drain_s: float) -> None:
    """End this process soon after its drain, unless it has ended before.

    Must be called in the main thread.

    Args:
        drain_s: How long the drain may take from now on.
    """
    ordered_s = min(drain_s, _LONGEST_S) + _ORDER_S
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, ordered_s + _KERNEL_S)
    timer = threading.Timer(ordered_s, _end)
    timer.name, timer.daemon = "headrace-hard-end", True
    timer.start()


def _end() -> None:
    _log.warning("what was cut did not end; this process ends without it")
    logging.shutdown()
    os._exit(1)
