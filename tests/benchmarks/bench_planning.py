"""Measure what planning costs a stream, in process, before anything is gathered or sent.

``PYTHONPATH=tests python tests/benchmarks/bench_planning.py`` takes the plans of a stream as the
server does, order, blocks, tokens and lookahead, from a manifest whose blocks all count as cached,
and prints microseconds of processor time a batch: *steady* is the lower quartile of groups, and
*mean* has the begins of epochs in it. *first* is what the first plan of an epoch that nobody has
read takes at least, in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass

import numpy as np

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.needs import CacheNeeds
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.kernels.loader import LOOPS
from headrace.server.plan.prefetch_blocks import Lookahead
from headrace.server.stream.stage_plugs import NO_STAGES
from headrace.server.stream.stream_setup import stream_contents
from headrace.server.telemetry.metrics import Metrics
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_manifest

_BLOCK_SAMPLES = 6250  # of 168 bytes: about 1 MiB
_GROUP = 24  # batches, a multiple of those that are worked out together
_WARM = 2 * _GROUP


@dataclass(frozen=True, slots=True)
class Cost:
    """Of planning: microseconds a batch, and milliseconds for the first of an epoch."""

    steady_us: float
    mean_us: float
    first_ms: float


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{'NumPy' if LOOPS is None else 'compiled loops'}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'samples':>12}{'rank':>10}{'rows':>7}{'steady us':>11}{'mean us':>9}{'first ms':>10}")
    for sample_count in arguments.samples:
        with tempfile.TemporaryDirectory() as folder:
            _write(folder, sample_count)
            for rank, world_size in ((0, 1), (3, 64)):
                for rows in (4096, 1024, 256, 32):
                    if 8 * rows * world_size > sample_count:
                        continue
                    cost = _measure(folder, rows, rank, world_size, seconds=arguments.seconds)
                    print(
                        f"{sample_count:>12,}{f'{rank} of {world_size}':>10}{rows:>7}"
                        f"{cost.steady_us:>11.1f}{cost.mean_us:>9.1f}{cost.first_ms:>10.2f}",
                        flush=True,
                    )


def _measure(folder: str, rows: int, rank: int, world_size: int, *, seconds: float) -> Cost:
    cache = BlockCache(1 << 20, fetch_threads=1, observer=Metrics())
    with open_dataset(folder) as dataset:
        served = ServedDataset("planned", dataset, cache=cache, max_batch_bytes=1 << 30)
        served.source.slot_of[:] = 1
        # As if all were cached: a job that does not fit reads windows, which are not.
        served.windows.needs = CacheNeeds(1 << 50)
        blocks = served.blocks(cache)

        def stream(epoch: int, position: int) -> Lookahead:
            request = pb.ReadBatchesRequest(
                dataset="planned",
                global_batch_size=rows * world_size,
                rank=rank,
                world_size=world_size,
                epoch_start=pb.EpochStart(epoch=epoch, position=position),
            )
            return Lookahead(
                stream_contents(NO_STAGES.of_batches(request), served).plans,
                blocks=blocks,
                waiter=blocks.waiter(),
                budget_bytes=lambda: 1 << 28,
            )

        times, epochs = _take(stream(0, 0), seconds)
        starts = [_first_ns(stream(epoch, 0)) for epoch in range(100, 109)]
    cache.close()
    return Cost(
        float(np.quantile(times, 0.25)) / 1e3,
        statistics.fmean(times) / 1e3 if epochs > 1 else float("nan"),
        min(starts) / 1e6,
    )


def _take(lookahead: Lookahead, seconds: float) -> tuple[list[float], int]:
    """Take plans for a while; return the time of a batch in each group, and how many epochs."""
    for _ in range(_WARM):
        lookahead.take()
    groups: list[float] = []
    stop = time.monotonic() + seconds
    ends = 0
    while time.monotonic() < stop:
        began = time.thread_time_ns()
        for _ in range(_GROUP):
            planned = lookahead.take()
            ends += planned is None or not planned[0]
        groups.append((time.thread_time_ns() - began) / _GROUP)
    return groups, ends


def _first_ns(lookahead: Lookahead) -> float:
    """Return what the first plan of a stream takes."""
    began = time.thread_time_ns()
    lookahead.take()
    return time.thread_time_ns() - began


def _write(folder: str, sample_count: int) -> None:
    """Write a manifest of blocks of about 1 MiB, 64 of them a shard."""
    shard_count = max(4, sample_count // _BLOCK_SAMPLES // 64)
    block_count = sample_count // _BLOCK_SAMPLES // shard_count
    sample_counts = np.full((shard_count, block_count), sample_count // shard_count // block_count)
    write_manifest(folder, sample_counts, sample_counts * 168, stored_bytes=700_000)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="*", default=[400_000, 100_000_000])
    parser.add_argument("--seconds", type=float, default=1.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
