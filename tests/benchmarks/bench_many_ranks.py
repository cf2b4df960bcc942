"""Measure 64 ranks at once against one: their total, and how evenly it is shared.

``PYTHONPATH=tests python tests/benchmarks/bench_many_ranks.py`` serves tokens from a warm cache to
one rank, and then to many, in turn, and so does a bare gRPC server that yields ready bytes, which
is the ceiling: what many streams cost gRPC itself is no fault of ours. Clients are two processes
with a thread and a connection for each rank. *Fairness* is bytes of the slowest rank by the
fastest's: over each such span of seconds that lies in the time measured, in the median, and over
all of that time. A server makes up to 2 MiB for a rank in one pass, and 64 ranks that share 600
MB/s get five of those a second, so a span of a second tells one pass from the next and no more:
over 5 s a pass is 4 % of a rank's bytes. *Processor* are the payload bytes by the server's
processor time.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks.bench_server import (
    READ,
    Case,
    Running,
    grpc_messages,
    open_channel,
    tokens,
    warm,
    write,
)
from headrace.bench.children import processor_s, serving, serving_ready_bytes
from headrace.bench.ready import METHOD
from headrace.client.options.settings import GROUP_BYTES
from headrace.client.wire.frames import keep_freed_memory
from headrace.v1 import shard_service_pb2 as pb

_WARM_MESSAGES = 3
_START_TIMEOUT_S = 60
# So many that an epoch of one of 64 ranks has 46 batches: the end of an epoch ends a pass too, and
# with 11 batches an epoch that cost a tenth.
_CASE = Case("int32[2048] tokens", 32, 96_000, tokens)
# Seconds over which fairness is told, and between two looks at what each rank has got.
_SPANS_S = (1.0, 2.0, 5.0)
_LOOK_S = 0.25
_BATCH_BYTES = 32 * 2048 * 4


@dataclass(frozen=True, slots=True)
class _Load:
    """What some ranks ask for.

    Attributes:
        server: Whom.
        method: Of its service.
        ranks: How many.
        seconds: How long they are measured.
        clients: Processes that they are in.
        settle_s: How long they read before.
    """

    server: Running
    method: str
    ranks: int
    seconds: float
    clients: int
    settle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Result:
    """What some ranks got.

    Attributes:
        total: Bytes a second, all ranks together.
        fairness: Bytes of the slowest by the fastest's, over each of `_SPANS_S` and all the time.
        processor: Bytes by a second of the server's processor time.
    """

    total: float
    fairness: tuple[float, ...]
    processor: float


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64])
    parser.add_argument("--workers", type=int, nargs="+", default=[0])
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--settle-s", type=float, default=6.0)
    parser.add_argument("--without-bare", action="store_true")
    arguments = parser.parse_args()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"batches of {_BATCH_BYTES >> 10} KiB, {arguments.rounds} rounds of {arguments.seconds} s, "
        f"{arguments.clients} client processes, load {os.getloadavg()[0]:.1f}"
    )
    spans = "".join(f"{f'in {span:g} s':>9}" for span in (*_SPANS_S, arguments.seconds))
    print(f"{'':<12}{'ranks':>6}{'MB/s':>8}{'of one':>8}{'MB/cpu s':>10}  fairness{spans}")
    counts = [1, *arguments.ranks]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        write(_CASE, folder)
        measured: list[tuple[str, Running, str, float]] = []
        if not arguments.without_bare:
            ready = servers.enter_context(serving_ready_bytes(_BATCH_BYTES))
            measured.append(("bare", Running(ready.address, ready.process.pid), METHOD, 0))
        for workers in arguments.workers:
            served = servers.enter_context(
                serving({"bench": folder}, "--workers", str(workers), "--log-level", "error")
            )
            ours = Running(served.address, served.process.pid)
            settle_s = arguments.settle_s if workers > 1 else 0
            name = f"workers {workers}" if workers else "headrace"
            measured.append((name, ours, READ, settle_s))
            _fill(ours.address)
        for name, server, method, settle_s in measured:
            loads = [
                _Load(server, method, ranks, arguments.seconds, arguments.clients, settle_s)
                for ranks in counts
            ]
            rounds = [[_measure(load) for load in loads] for _ in range(arguments.rounds)]
            _print(name, counts, rounds)


def _fill(address: str) -> None:
    """Read every sample once, so that the cache holds it."""
    warm(address, _request(0, 1), _CASE.sample_count // _CASE.batch_size)


def _request(rank: int, ranks: int) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset="bench",
        global_batch_size=_CASE.batch_size * ranks,
        rank=rank,
        world_size=ranks,
        epoch_start=pb.EpochStart(),
        max_group_bytes=GROUP_BYTES,
    )


def _print(name: str, counts: Sequence[int], rounds: Sequence[Sequence[_Result]]) -> None:
    for index, count in enumerate(counts):
        results = [results[index] for results in rounds]
        ratio = statistics.median(many[index].total / many[0].total for many in rounds)
        total, processor = (
            statistics.median(values)
            for values in zip(*((one.total, one.processor) for one in results), strict=True)
        )
        fairness = map(
            statistics.median, zip(*(result.fairness for result in results), strict=True)
        )
        print(
            f"{name:<12}{count:>6}{total / 1e6:>8.0f}{ratio:>8.2f}{processor / 1e6:>10.0f}{'':>10}"
            + "".join(f"{value:>9.2f}" for value in fairness),
            flush=True,
        )


def _measure(load: _Load) -> _Result:
    # Imports take seconds, and no channel is open yet where they are made once for all.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.bench_server"])
    pipes, children = [], []
    for client in range(load.clients):
        mine, theirs = context.Pipe()
        ranks = list(range(client, load.ranks, load.clients))
        child = context.Process(target=_read, args=(load, ranks, theirs), name=f"client-{client}")
        child.start()
        pipes.append(mine)
        children.append(child)
    for pipe in pipes:
        if not pipe.poll(_START_TIMEOUT_S):
            raise RuntimeError("the clients did not start")
        pipe.recv()
    spent, began = _processor_s(load.server.pid), time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    looks = [pipe.recv() for pipe in pipes]
    seconds, spent = time.perf_counter() - began, _processor_s(load.server.pid) - spent
    for child in children:
        child.join(_START_TIMEOUT_S)
    received = np.concatenate(looks, axis=1)
    total = int((received[-1] - received[0]).sum())
    return _Result(total / seconds, _fairness(received), total / spent)


def _fairness(received: NDArray[np.int64]) -> tuple[float, ...]:
    """Return the fairness over each of `_SPANS_S`, and over all.

    Args:
        received: Bytes of each rank at each look, ``(looks, ranks) int64``.
    """
    last = len(received) - 1
    fairness = []
    for steps in (*(round(span / _LOOK_S) for span in _SPANS_S), last):
        got = received[steps:] - received[:-steps]
        # Where the time measured is shorter than the span there is none.
        fairness.append(float(np.median(got.min(1) / got.max(1))) if len(got) else math.nan)
    return tuple(fairness)


def _processor_s(pid: int) -> float:
    """Return the processor time of a process and of its children, in seconds."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for one in threads for child in one.read_text(encoding="ascii").split()]
    return processor_s(pid) + sum(_processor_s(int(child)) for child in children)


def _read(load: _Load, ranks: Sequence[int], pipe: Connection) -> None:
    """Read as some ranks, say when all of them have begun, and count when told to."""
    keep_freed_memory()
    received = dict.fromkeys(ranks, 0)
    begun = threading.Barrier(len(ranks) + 1)
    over = threading.Event()

    def read(rank: int) -> None:
        wanted = b"" if load.method == METHOD else _request(rank, load.ranks).SerializeToString()
        left = _WARM_MESSAGES
        while not over.is_set():
            # A worker that has more than its share of streams sends some away.
            with (
                suppress(grpc.RpcError),
                open_channel(load.server.address) as channel,
                closing(grpc_messages(channel, load.method, wanted)) as messages,
            ):
                for message in messages:
                    left -= 1
                    if not left:
                        begun.wait(_START_TIMEOUT_S)
                    received[rank] += len(message)
                    if over.is_set():
                        return

    threads = [threading.Thread(target=read, args=(rank,), name=f"rank-{rank}") for rank in ranks]
    for thread in threads:
        thread.start()
    begun.wait(_START_TIMEOUT_S)
    over.wait(load.settle_s)
    pipe.send("ready")
    pipe.recv()
    looks = [list(received.values())]
    began = time.perf_counter()
    for look in range(1, round(load.seconds / _LOOK_S) + 1):
        over.wait(began + look * _LOOK_S - time.perf_counter())
        looks.append(list(received.values()))
    over.set()
    pipe.send(np.array(looks, np.int64))
    for thread in threads:
        thread.join(_START_TIMEOUT_S)


if __name__ == "__main__":
    main()
