"""Measure what a second tenant has of a server beside one that has many streams.

``PYTHONPATH=tests python tests/benchmarks/bench_tenants.py [--streams 64]`` serves tokens from a
warm cache. One process reads one stream as one caller, alone and beside another process that reads
many streams as another caller. Its fair share is half of what both have together then, or what it
has alone, if that is less. ``--pace-ms 100`` lets every stream rest that long after each batch, as
a loop with a step does: what both have together then is what the pace allows, if nothing is in
their way. ``--batch-size 2`` makes messages of 16 KiB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc

from benchmarks.bench_server import Case, tokens, write
from headrace.bench.children import serving
from headrace.v1 import shard_service_pb2 as pb
from support.served import stub_of

_CASE = Case("int32[2048] tokens", 128, 24_000, tokens)
_START_S, _WARM_S = 60.0, 1.0
_CALLERS = ("one", "many")


def _token(caller: str) -> str:
    return f"token-of-{caller}-0123456789"


def _tokens() -> str:
    return json.dumps(
        {
            "tokens": [
                {
                    "name": caller,
                    "sha256": hashlib.sha256(_token(caller).encode()).hexdigest(),
                    "datasets": ["*"],
                }
                for caller in _CALLERS
            ]
        }
    )


@dataclass(frozen=True, slots=True)
class _Loop:
    """How each stream reads."""

    batch_size: int
    pace_s: float


def _read(address: str, caller: str, loop: _Loop, read: list[int], place: int) -> None:
    request = pb.ReadBatchesRequest(
        dataset="bench",
        global_batch_size=loop.batch_size,
        world_size=1,
        order=pb.OrderSpec(seed=place),
        epoch_start=pb.EpochStart(),
    )
    metadata = (("authorization", f"Bearer {_token(caller)}"),)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as channel:
        call: Any = stub_of(channel).ReadBatches(request, metadata=metadata)
        for message in call:
            read[place] += (
                len(message.chunk.data) if message.HasField("chunk") else message.ByteSize()
            )
            if loop.pace_s and message.HasField("batch"):
                time.sleep(loop.pace_s)


def _tenant(address: str, caller: str, streams: int, loop: _Loop, orders: Connection) -> None:
    """Read for ever; say how many bytes were read whenever asked."""
    read = [0] * streams
    for place in range(streams):
        arguments = (address, caller, loop, read, place)
        threading.Thread(target=_read, args=arguments, daemon=True).start()
    while not all(read):
        time.sleep(0.01)
    orders.send("reading")
    while orders.recv() == "read":
        orders.send(sum(read))


@contextmanager
def _reading(address: str, caller: str, streams: int, loop: _Loop) -> Iterator[Connection]:
    ours, theirs = multiprocessing.Pipe()
    arguments = (address, caller, streams, loop, theirs)
    process = multiprocessing.get_context("spawn").Process(target=_tenant, args=arguments)
    process.start()
    try:
        if not ours.poll(_START_S):
            raise TimeoutError(f"the streams of {caller} did not begin")
        ours.recv()
        yield ours
    finally:
        process.kill()
        process.join()


def _rates(tenants: list[Connection], seconds: float) -> list[float]:
    time.sleep(_WARM_S)
    start, began = _sums(tenants), time.monotonic()
    time.sleep(seconds)
    end, took = _sums(tenants), time.monotonic() - began
    return [(after - before) / took / 2**20 for before, after in zip(start, end, strict=True)]


def _sums(tenants: list[Connection]) -> list[int]:
    for tenant in tenants:
        tenant.send("read")
    return [tenant.recv() for tenant in tenants]


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default="0")
    parser.add_argument("--pace-ms", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=_CASE.batch_size)
    given = parser.parse_args()
    loop = _Loop(given.batch_size, given.pace_ms / 1000)
    print(f"# {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {given.streams} streams")
    with tempfile.TemporaryDirectory() as folder:
        write(_CASE, f"{folder}/bench")
        tokens_file = Path(folder, "tokens.json")
        tokens_file.write_text(_tokens())
        tokens_file.chmod(0o600)
        options = (f"--tokens={tokens_file}", f"--workers={given.workers}", "--log-level=error")
        with serving({"bench": f"{folder}/bench"}, *options) as server:
            for _ in range(given.rounds):
                with _reading(server.address, "one", 1, loop) as one:
                    (alone,) = _rates([one], given.seconds)
                    with _reading(server.address, "many", given.streams, loop) as many:
                        mine, others = _rates([one, many], given.seconds)
                fair = min(alone, (mine + others) / 2)
                print(
                    f"alone {alone:.0f} MiB/s; beside the other {mine:.0f} of {mine + others:.0f}, "
                    f"{mine / fair:.2f} of its fair share",
                    flush=True,
                )


if __name__ == "__main__":
    main()
