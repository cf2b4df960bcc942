"""How long ranks wait for the first batch after a reshard, and how many bytes are dropped.

Eight ranks, each a process with a loop that trains for a while, read from one server. A barrier is
the moment when the group has agreed; each rank then takes another share, a step back or not. Beside
it, the same with a dataset that is closed and opened, as after a restart. What is dropped is what
lies ready; ``--prefetch-bytes`` bounds it.

    PYTHONPATH=tests python tests/benchmarks/bench_reshard.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from itertools import chain, repeat
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

from headrace.client import RemoteDataset, Transport
from support.command import serving
from support.datasets import write_rows

_SAMPLES, _WIDTH = 1 << 15, 256


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
    """Reshard again and again, and say how long each took and what was dropped."""
    ranks, told = args.ranks, []
    dataset = _dataset(address, rank, args)
    loop = chain.from_iterable(repeat(dataset))
    for number in range(args.times):
        for _ in range(3):
            step = next(loop).step
            time.sleep(0.03)
        own, world = (rank + number + 1) % ranks, ranks if number % 2 else 2 * ranks
        together.wait()
        running = dataset._live._running
        dropped = running._bytes if running is not None else 0
        began = time.perf_counter()
        if args.opens_again:
            state = dataset.state_dict()
            dataset.close()
            dataset = _dataset(address, own, args)
            dataset.load_state_dict(state)
            loop = chain.from_iterable(repeat(dataset))
        else:
            dataset.reshard(rank=own, world_size=world, at_step=step + number % 2)
        next(loop)
        told.append((time.perf_counter() - began, dropped))
    dataset.close()
    found.put(told)


def _measure(args: argparse.Namespace, address: str) -> None:
    context = multiprocessing.get_context("forkserver")
    together, found = context.Barrier(args.ranks), context.Queue()
    ranks = [
        context.Process(target=_rank, args=(rank, args, address, together, found))
        for rank in range(args.ranks)
    ]
    for each in ranks:
        each.start()
    told = np.array([one for _ in ranks for one in found.get(timeout=300)])
    for each in ranks:
        each.join()
    p50, p99 = np.percentile(told[:, 0] * 1e3, [50, 99])
    kind = "opened again" if args.opens_again else "reshard"
    batch_bytes = args.batch_size * _WIDTH * 4
    print(
        f"{kind:12} {len(told):6} {p50:8.1f} {p99:8.1f} {told[:, 0].max() * 1e3:8.1f} "
        f"{told[:, 1].mean() / batch_bytes:10.1f} {told[:, 1].max() / 1e6:10.2f}"
    )


def main() -> None:
    """Measure both and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--prefetch-bytes", type=int, default=64 << 20)
    parser.add_argument("--transport", default="grpc")
    args = parser.parse_args()
    print(f"{args.ranks} ranks, {multiprocessing.cpu_count()} processors, {args.transport}")
    print(f"{'':12} {'times':>6} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}", end=" ")
    print(f"{'dropped':>10} {'most MB':>10}")
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "rows")
        write_rows(url, sample_count=_SAMPLES, width=_WIDTH)
        with serving({"rows": url}) as server:
            for args.opens_again in (False, True):
                _measure(args, server.address)


if __name__ == "__main__":
    main()
