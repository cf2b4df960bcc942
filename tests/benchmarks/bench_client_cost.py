"""Measure the client's processor time beside that of gRPC's own receive of the same batches.

``PYTHONPATH=examples:tests python tests/benchmarks/bench_client_cost.py`` serves the four kinds of
samples of `headrace bench` over loopback TCP, in batches of its sizes and in small ones. In one
process, in turns, a `RemoteDataset` with its defaults is iterated, and a bare gRPC call hands out
the same messages as bytes. What is printed are medians over the rounds: processor time of all
threads of that process, a batch and a GB of payload, and payload a second. Server and reader share
the cores.

The bare call is made twice, on a channel with gRPC's defaults and on one whose messages arrive in
the thread that asks for them, as the client's do: the less of both counts as gRPC's own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc

from benchmarks.peers import kinds, ours
from headrace.bench import WORKLOADS
from headrace.bench.children import serving
from headrace.client import ReadOptions, RemoteDataset
from headrace.order import OrderSpec
from headrace.v1 import shard_service_pb2 as pb

_SIZES = (*((each.name, each.batch_size) for each in WORKLOADS), ("rows", 256), ("texts", 256))
_WANTED_S = 0.35
"""Above gRPC's own, a GB."""

_WAYS = ("client", "defaults", "direct")
_DIRECT = (("SingleThreadedUnaryStream", 1),)
_BATCH_TAG = pb.ReadBatchesResponse.DESCRIPTOR.fields_by_name["batch"].number << 3 | 2


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=[each.name for each in WORKLOADS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each reading")
    parser.add_argument("--folder", help="keep the samples here, or take them from here")
    given = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{given.rounds} rounds of {given.seconds:g} s"
    )
    print("samples    batch     KiB | client us  gRPC us  direct  above us  s/GB | MiB/s of each")
    with tempfile.TemporaryDirectory() as folder:
        served = {kind: _written(kind, Path(given.folder or folder, kind)) for kind in given.kinds}
        with serving(served, "--log-level", "error") as server:
            for kind, batch in _SIZES:
                if kind in given.kinds:
                    _row(server.address, kind, batch, [str(given.rounds), str(given.seconds)])


def _written(kind: str, folder: Path) -> str:
    if not folder.exists():
        folder.mkdir(parents=True)
        ours.write(kinds.make(kind, share=0.5), folder)
    return str(folder / "ours")


def _row(address: str, kind: str, batch: int, options: list[str]) -> None:
    command = [sys.executable, __file__, "--read", address, kind, str(batch), *options]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
    costs = json.loads(found.stdout)
    us = [statistics.median(costs[each]["us"]) for each in _WAYS]
    size, above_us = costs["bytes"], us[0] - min(us[1:])
    above_s = above_us / size * 1000
    rates = [size / statistics.median(costs[each]["seconds"]) / 2**20 for each in _WAYS]
    print(
        f"{kind:8} {batch:7,d} {size / 1024:7,.0f} | {us[0]:9,.0f} {us[1]:8,.0f} {us[2]:7,.0f} "
        f"{above_us:9,.0f} {above_s:5.2f} | {' '.join(f'{rate:6,.0f}' for rate in rates)} "
        f"{'' if above_s < _WANTED_S else 'missed'}",
        flush=True,
    )


def _read(address: str, kind: str, batch: int, *, rounds: int, seconds: float) -> None:
    """Take turns in this process, and print what a batch took each time."""
    costs: dict[str, Any] = {name: {"us": [], "seconds": []} for name in _WAYS}
    with (
        closing(RemoteDataset(address, kind, batch_size=batch, seed=7)) as dataset,
        grpc.insecure_channel(address) as defaults,
        grpc.insecure_channel(address, options=_DIRECT) as direct,
    ):
        for _ in range(rounds):
            ways = (
                _batches(dataset),
                _messages(defaults, kind, batch),
                _messages(direct, kind, batch),
            )
            for name, batches in zip(_WAYS, ways, strict=True):
                cpu_s, seconds_each, size = _drained(batches, seconds)
                costs[name]["us"].append(cpu_s * 1e6)
                costs[name]["seconds"].append(seconds_each)
                dataset.close()
    costs["bytes"] = size
    print(json.dumps(costs))


def _drained(batches: Generator[int, None, None], seconds: float) -> tuple[float, float, float]:
    """Return processor time, time and bytes of a batch; the first tenth is not counted."""
    with closing(batches):
        until = time.perf_counter() + seconds / 10
        while time.perf_counter() < until:
            next(batches)
        began, cpu, count, size = time.perf_counter(), time.process_time(), 0, 0
        while time.perf_counter() - began < seconds:
            size += next(batches)
            count += 1
        spent, elapsed = time.process_time() - cpu, time.perf_counter() - began
        return spent / count, elapsed / count, size / count


def _batches(dataset: RemoteDataset) -> Generator[int, None, None]:
    while True:
        for _ in dataset:
            yield 0


def _messages(channel: grpc.Channel, kind: str, batch: int) -> Generator[int, None, None]:
    """Yield the bytes of each batch, which are taken as they come."""
    options = ReadOptions(kind, OrderSpec(seed=7, unit=batch), batch)
    call: Any = channel.unary_stream(
        "/headrace.v1.ShardService/ReadBatches",
        request_serializer=pb.ReadBatchesRequest.SerializeToString,
        response_deserializer=bytes,
    )
    messages = call(options.to_request(epoch=0, position=0, token=None))
    size = 0
    try:
        for message in messages:
            if message[0] == _BATCH_TAG and size:
                yield size
                size = 0
            size += len(message)
    finally:
        messages.cancel()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        where, what, size, rounds_text, seconds_text = sys.argv[2:]
        _read(where, what, int(size), rounds=int(rounds_text), seconds=float(seconds_text))
    else:
        main()
