"""Ranks of a job as forks of one process, which has imported what they need."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def run_gang(count: int, work: Callable[[int], None]) -> bool:
    """Do the work of each rank; return whether one failed, after its traceback."""
    # A rank that ended sooner than the others would break the connections that they share.
    told, tell = os.pipe()
    wait, let_go = os.pipe()
    for rank in range(count):
        if not os.fork():
            os.close(let_go)
            said = b"!"
            try:
                work(rank)
                said = b"."
            except Exception:  # noqa: BLE001 - said aloud, and the parent's to judge
                traceback.print_exc()
            os.write(tell, said)
            os.read(wait, 1)
            os._exit(0)
    heard = b"".join(os.read(told, 1) for _ in range(count))
    os.close(let_go)
    return b"!" in heard
