"""Measure what opening a stream costs: one after the other, and very many at once.

``PYTHONPATH=tests python tests/benchmarks/bench_openings.py`` serves a small dataset, and prints
the processor time of client and server for a stream that is opened by `NumpyDataset`, gives its
first batch, and is closed; over gRPC, and over the lane. *bare* is gRPC alone: a connection of its
own, a call and its first message. *Together* are as many ranks as ``--ranks``, which ask for their
first batch at the same time: how long until the last one has it. They are threads of one process
with a `BatchReader` each, because 1,024 processes would measure how long Python starts.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import grpc

from benchmarks.bench_server import grpc_messages, open_channel
from headrace.bench.children import Serving, serving, serving_ready_bytes
from headrace.bench.ready import METHOD
from headrace.client import NumpyDataset, Order, Transport
from headrace.client.options.read_request import ReadOptions
from headrace.client.options.settings import Deadlines
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.wire.buffers import aligned
from support.datasets import small_table, write_dataset
from support.threads import threads_of

_SAMPLES = 1 << 18
_RANKS = 1024
_RANK_BATCH = 4
_KINDS = ("grpc", "lane")


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=_RANKS)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"grpcio {grpc.__version__}, medians of {arguments.rounds} rounds of {arguments.streams} "
        f"streams, load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        table = small_table(_SAMPLES)
        write_dataset(folder, table, shard_samples=[_SAMPLES // 4] * 4, block_bytes=1 << 20)
        streams = f"--max-streams={max(256, 2 * arguments.ranks)}"
        log = subprocess.DEVNULL
        ours = servers.enter_context(serving({"small": folder}, streams, "--lane=auto", stderr=log))
        bare = servers.enter_context(serving_ready_bytes(1024))
        opened: dict[str, tuple[Serving, Callable[[int], None]]] = {
            "bare": (bare, lambda _: _open_bare(bare.address))
        }
        for kind in _KINDS:
            opened[kind] = ours, lambda rank, kind=kind: _open(ours.address, kind, rank)  # type: ignore[misc]
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in opened}
        for _ in range(arguments.rounds):
            for name, (server, open_one) in opened.items():
                found[name].append(_costs(server, open_one, arguments.streams))
        print(f"{'a stream, ms':<16}{'client':>8}{'server':>8}{'both':>8}")
        for name, costs in found.items():
            client, server_s = (1000 * statistics.median(one) for one in zip(*costs, strict=True))
            print(f"{name:<16}{client:>8.2f}{server_s:>8.2f}{client + server_s:>8.2f}")
        if arguments.ranks:
            seconds = statistics.median(
                _together(ours.address, arguments.ranks) for _ in range(arguments.rounds)
            )
            print(f"{arguments.ranks} together: the last has its first batch after {seconds:.1f} s")


def _open(address: str, kind: str, rank: int) -> None:
    with NumpyDataset(
        address,
        "small",
        batch_size=_RANK_BATCH,
        rank=rank,
        world_size=_RANKS,
        transport=Transport(kind),
    ) as dataset:
        next(iter(dataset))


def _open_bare(address: str) -> None:
    with (
        open_channel(address) as channel,
        closing(grpc_messages(channel, METHOD, b"")) as messages,
    ):
        next(messages)


def _costs(server: Serving, open_one: Callable[[int], None], count: int) -> tuple[float, float]:
    """Return the processor time of a stream in the client and in the server, in seconds."""
    open_one(0)
    before, server_before = time.process_time(), server.processor_s()
    for rank in range(count):
        open_one(rank)
    # What is closed ends a moment later.
    time.sleep(0.3)
    return (
        (time.process_time() - before) / count,
        (server.processor_s() - server_before) / count,
    )


def _together(address: str, ranks: int) -> float:
    """Return the seconds until the last of many ranks has its first batch."""
    begin, have = threading.Barrier(ranks + 1), threading.Barrier(ranks + 1)
    size = _RANK_BATCH * ranks
    order = Order().spec(seed=0, shuffle=True, unit=size)

    def read(rank: int) -> None:
        reader = BatchReader(
            [address],
            ReadOptions("small", order, size, rank, ranks),
            place=Place(),
            deadlines=Deadlines(),
            allocate=aligned,
        )
        with closing(reader.events()) as events:
            begin.wait()
            next(events)
            have.wait()

    with threads_of(read, range(ranks)):
        begin.wait()
        began = time.monotonic()
        have.wait()
        return time.monotonic() - began


if __name__ == "__main__":
    main()
