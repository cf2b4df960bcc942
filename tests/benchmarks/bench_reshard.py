"""How long ranks wait for the first batch after a reshard, and how much is dropped.

Eight ranks, each a process with a loop that trains for a while, read from one server. A barrier is
the moment when the group has agreed; each rank then takes another share, a step back or not. It is
done with all defaults, with the bytes of two batches as ``prefetch_bytes``, and with a dataset that
is closed and opened, as after a restart.

What a rank drops lies ready: on average over the first change, which comes after ``--before-s`` of
training, and over the others, which follow each other after a tenth of a second. ``made`` is what
the server made and no loop took: that, and what was under way or not sent yet.

    PYTHONPATH=tests python tests/benchmarks/bench_reshard.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import tempfile
import time
from itertools import chain, repeat
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from headrace.client import RemoteDataset, Transport
from headrace.client.options.settings import DEFAULT_PREFETCH_BYTES
from support.command import serving
from support.datasets import write_rows
from support.envoy import free_port

_SAMPLES, _WIDTH = 1 << 16, 256
_STEP_S, _STEPS = 0.03, 3
_WAYS = {"reshard": None, "reshard, two batches": 2, "opened again": None}


def _dataset(address: str, rank: int, args: argparse.Namespace) -> RemoteDataset:
    return RemoteDataset(
        address,
        "rows",
        batch_size=args.batch_size,
        rank=rank,
        world_size=args.ranks,
        transport=Transport(args.transport, prefetch_bytes=args.prefetch_bytes),
    )


def _rank(rank: int, args: argparse.Namespace, address: str, together: Barrier, found: Any) -> None:
    """Reshard again and again; say how long each took, what was dropped, and what was taken."""
    ranks, taken = args.ranks, 0
    dataset = _dataset(address, rank, args)
    loop = chain.from_iterable(repeat(dataset))
    told = []
    for number in range(args.times):
        until, steps = time.monotonic() + (0.0 if number else args.before_s), 0
        while steps < _STEPS or time.monotonic() < until:
            batch = next(loop)
            taken, steps = taken + batch.sample_count, steps + 1
            time.sleep(_STEP_S)
        own, world = (rank + number + 1) % ranks, ranks if number % 2 else 2 * ranks
        together.wait()
        running = dataset._live._running
        dropped = 0 if running is None else running._bytes
        began = time.perf_counter()
        if args.opens_again:
            state = dataset.state_dict()
            dataset.close()
            dataset = _dataset(address, own, args)
            dataset.load_state_dict(state)
            loop = chain.from_iterable(repeat(dataset))
        else:
            dataset.reshard(rank=own, world_size=world, at_step=batch.step + number % 2)
        taken += next(loop).sample_count
        told.append(
            (time.perf_counter() - began, dropped, dropped / (batch.sample_count * _WIDTH * 4))
        )
    dataset.close()
    found.put((told, taken))


def _sent(metrics: str) -> float:
    """Return the payload bytes that the server has sent."""
    with urlopen(f"http://{metrics}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    lines = re.findall(r"^headrace_sent_payload_bytes_total\S* (\S+)$", text, re.MULTILINE)
    return sum(map(float, lines))


def _measure(way: str, args: argparse.Namespace, address: str, metrics: str) -> None:
    batch_bytes, held = args.batch_size * _WIDTH * 4, _WAYS[way]
    args.prefetch_bytes = held * batch_bytes if held else DEFAULT_PREFETCH_BYTES
    args.opens_again = way == "opened again"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headrace.client.api.dataset", "support.command"])
    together, found = context.Barrier(args.ranks), context.Queue()
    sent = _sent(metrics)
    ranks = [
        context.Process(target=_rank, args=(rank, args, address, together, found))
        for rank in range(args.ranks)
    ]
    for each in ranks:
        each.start()
    got = [found.get(timeout=300) for _ in ranks]
    for each in ranks:
        each.join()
    told = np.array([each for each, _ in got])
    waits, dropped = told[..., 0] * 1e3, told[..., 1] / 1e6
    made = _sent(metrics) - sent - sum(taken for _, taken in got) * _WIDTH * 4
    p50, p99 = np.percentile(waits, [50, 99])
    batches = told[..., 2]
    ready = "".join(
        f"{dropped[:, at].mean():9.2f} {batches[:, at].mean():8.1f}"
        for at in (slice(1), slice(1, None))
    )
    print(
        f"{way:21}{waits.size:6} {p50:8.1f} {p99:8.1f} {waits.max():8.1f}{ready} "
        f"{made / waits.size / 1e6:8.2f}",
        flush=True,
    )


def main() -> None:
    """Measure all ways and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--before-s", type=float, default=10.0)
    parser.add_argument("--transport", default="grpc")
    parser.add_argument("--ways", nargs="*", default=list(_WAYS), choices=list(_WAYS))
    args = parser.parse_args()
    print(
        f"{args.ranks} ranks, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, "
        f"{args.transport}, batches of {args.batch_size * _WIDTH * 4 / 1e6:.2f} MB"
    )
    print(f"{'':21}{'times':>6} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}", end=" ")
    print(f"{'first MB':>8} {'batches':>8} {'then MB':>8} {'batches':>8} {'made MB':>8}")
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "rows")
        write_rows(url, sample_count=_SAMPLES, width=_WIDTH)
        metrics = f"127.0.0.1:{free_port()}"
        with serving({"rows": url}, f"--metrics-listen={metrics}", "--log-level=error") as server:
            for way in args.ways:
                _measure(way, args, server.address, metrics)


if __name__ == "__main__":
    main()
