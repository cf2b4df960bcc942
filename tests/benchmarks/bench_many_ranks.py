"""Measure 64 ranks at once against one: their total, and how evenly it is shared.

``PYTHONPATH=tests python tests/benchmarks/bench_many_ranks.py`` serves tokens from a warm cache to
one rank, and then to many, in turn, and so does a bare gRPC server that yields ready bytes, which
is the ceiling: what many streams cost gRPC itself is no fault of ours. Clients are two processes
with a thread and a connection for each rank. *Fairness* is bytes of the slowest rank by the
fastest's in the time measured, *processor* the payload bytes by the server's processor time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.bench_server import (
    READ,
    Case,
    Running,
    grpc_messages,
    open_channel,
    process,
    serve_headrace,
    tokens,
    write,
)
from headrace.bench._children import processor_s, serving_ready_bytes
from headrace.bench._ready import METHOD
from headrace.v1 import shard_service_pb2 as pb

_CLIENTS = 2
_WARM_MESSAGES = 3
_START_TIMEOUT_S = 60
_CASE = Case("int32[2048] tokens", 32, 24_000, tokens)
_BATCH_BYTES = 32 * 2048 * 4


@dataclass(frozen=True, slots=True)
class _Load:
    """What some ranks ask for.

    Attributes:
        server: Whom.
        method: Of its service.
        ranks: How many.
        seconds: How long they are measured.
    """

    server: Running
    method: str
    ranks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Result:
    """Bytes a second, all ranks together; slowest by fastest; bytes a second of the server's."""

    total: float
    fairness: float
    processor: float


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"batches of {_BATCH_BYTES >> 10} KiB, {arguments.rounds} rounds of {arguments.seconds} s, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':<10}{'ranks':>6}{'MB/s':>8}{'of one':>8}{'fairness':>10}{'MB/cpu s':>10}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        write(_CASE, folder)
        ours = servers.enter_context(process(serve_headrace, folder))
        ready = servers.enter_context(serving_ready_bytes(_BATCH_BYTES))
        bare = Running(ready.address, ready.process.pid)
        _measure(_Load(ours, READ, 1, 2 * arguments.seconds))  # fills the cache
        for name, server, method in (("bare", bare, METHOD), ("headrace", ours, READ)):
            rounds = [
                [
                    _measure(_Load(server, method, ranks, arguments.seconds))
                    for ranks in (1, arguments.ranks)
                ]
                for _ in range(arguments.rounds)
            ]
            _print(name, arguments.ranks, rounds)


def _print(name: str, ranks: int, rounds: Sequence[Sequence[_Result]]) -> None:
    ratio = statistics.median(many.total / one.total for one, many in rounds)
    for index, count in enumerate((1, ranks)):
        results = [results[index] for results in rounds]
        total, fairness, processor = (
            statistics.median(values)
            for values in zip(
                *((one.total, one.fairness, one.processor) for one in results), strict=True
            )
        )
        print(
            f"{name:<10}{count:>6}{total / 1e6:>8.0f}{ratio if index else 1:>8.2f}"
            f"{fairness:>10.2f}{processor / 1e6:>10.0f}",
            flush=True,
        )


def _measure(load: _Load) -> _Result:
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for client in range(_CLIENTS):
        mine, theirs = context.Pipe()
        ranks = list(range(client, load.ranks, _CLIENTS))
        child = context.Process(target=_read, args=(load, ranks, theirs), name=f"client-{client}")
        child.start()
        pipes.append(mine)
        children.append(child)
    for pipe in pipes:
        if not pipe.poll(_START_TIMEOUT_S):
            raise RuntimeError("the clients did not start")
        pipe.recv()
    spent, began = processor_s(load.server.pid), time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    received = [count for pipe in pipes for count in pipe.recv()]
    seconds, spent = time.perf_counter() - began, processor_s(load.server.pid) - spent
    for child in children:
        child.join(_START_TIMEOUT_S)
    total = sum(received)
    return _Result(total / seconds, min(received) / max(received), total / spent)


def _read(load: _Load, ranks: Sequence[int], pipe: Connection) -> None:
    """Read as some ranks, say when all of them have begun, and count when told to."""
    received = dict.fromkeys(ranks, 0)
    begun = threading.Barrier(len(ranks) + 1)
    over = threading.Event()

    def read(rank: int) -> None:
        request = pb.ReadBatchesRequest(
            dataset="bench",
            global_batch_size=_CASE.batch_size * load.ranks,
            rank=rank,
            world_size=load.ranks,
            epoch_start=pb.EpochStart(),
        )
        wanted = b"" if load.method == METHOD else request.SerializeToString()
        with (
            open_channel(load.server.address) as channel,
            closing(grpc_messages(channel, load.method, wanted)) as messages,
        ):
            for _ in range(_WARM_MESSAGES):
                next(messages)
            begun.wait(_START_TIMEOUT_S)
            for message in messages:
                received[rank] += len(message)
                if over.is_set():
                    return

    threads = [threading.Thread(target=read, args=(rank,), name=f"rank-{rank}") for rank in ranks]
    for thread in threads:
        thread.start()
    begun.wait(_START_TIMEOUT_S)
    pipe.send("ready")
    pipe.recv()
    before = dict(received)
    over.wait(load.seconds)
    counts = [received[rank] - before[rank] for rank in ranks]
    over.set()
    pipe.send(counts)
    for thread in threads:
        thread.join(_START_TIMEOUT_S)


if __name__ == "__main__":
    main()
