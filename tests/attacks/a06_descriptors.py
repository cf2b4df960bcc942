"""Six hundred connections that say nothing, or nothing but hello, to a server with 256 files."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from attacks.harness import After, Attack, Begin, Counts, Target, main
from attacks.http2 import connected

_SOCKETS = 600
_NOFILE = 256
# For the store.
_RESERVE = 64
# A second of silence, and a look at them.
_NOTICED_S = 2.0


def _strike(target: Target, begin: Begin) -> Counts:
    too_many = 0
    with ExitStack() as stack:
        for number in range(_SOCKETS):
            with suppress(OSError):
                if number % 2:
                    stack.enter_context(connected(target.place))
                else:
                    stack.enter_context(socket.create_connection(target.place, timeout=5))
        time.sleep(_NOTICED_S)
        until = begin()
        while time.monotonic() < until:
            open_files = len(list(Path(f"/proc/{target.pid}/fd").iterdir()))
            too_many += open_files > _NOFILE - _RESERVE
            time.sleep(0.05)
    return {"connections": _SOCKETS, "looks without a reserve": too_many}


def _check(after: After) -> list[str]:
    looks = after.counts["looks without a reserve"]
    return [f"the server had no reserve of files, {looks:.0f} times"] if looks else []


ATTACK = Attack("idle connections", _strike, nofile=_NOFILE, check=_check, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
