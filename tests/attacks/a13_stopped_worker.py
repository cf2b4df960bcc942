"""A worker process that is stopped: it keeps its connections and answers nobody.

Stopped for good it is killed after a while and replaced; its clients connect again, to another
worker. Stopped for a moment, as on a machine that swaps, it goes on with all its calls.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from attacks.harness import After, Attack, Begin, Counts, Target, family, main
from headrace.server.workers.supervisor import SILENCE_S

_MOMENT_S = 0.2
_LATE_S = 15.0


def _strike(target: Target, begin: Begin) -> Counts:
    stopped = _workers(target.pid)[0]
    until = begin()
    seconds = until - time.monotonic()
    os.kill(stopped, signal.SIGSTOP)
    if seconds < SILENCE_S + _LATE_S:
        time.sleep(_MOMENT_S)
        os.kill(stopped, signal.SIGCONT)
        time.sleep(max(0.0, until - time.monotonic()))
        return {"moments": 1}
    while time.monotonic() < until and _is_there(stopped):
        time.sleep(0.1)
    replaced_s = seconds - (until - time.monotonic())
    time.sleep(max(0.0, until - time.monotonic()))
    return {"seconds until it was gone": replaced_s}


def _workers(server: int) -> list[int]:
    """Return the processes below a server that are its workers."""
    return [pid for pid in family(server)[1:] if _is_worker(pid)]


def _is_worker(pid: int) -> bool:
    return b"headrace.server.process.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _check(after: After) -> list[str]:
    workers = len(_workers(after.pid))
    return [] if workers == 2 else [f"expected 2 workers afterwards; there are {workers}"]


ATTACK = Attack(
    "a stopped worker",
    _strike,
    options=("--workers=2",),
    check=_check,
    may_lose_server=True,
    long_seconds=60.0,
)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
