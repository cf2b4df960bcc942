"""Measure how fast blocks come from S3 through a cold cache, alone and with their neighbours.

``PYTHONPATH=examples:tests python tests/benchmarks/bench_cold.py`` starts a real S3 server
(SeaweedFS) on this machine, writes images of 64 KiB in shards of 64 MiB, and reads the first
batches of an epoch as rank 0 of 8, shuffled with the default window, from fresh servers: so
that the store and the cache are measured, and not the delivery. ``alone`` is a server whose cache
is told to read each block by itself. The ceiling is the store, which shares the processors.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.bench_first_batch import use_store, write_images
from benchmarks.bench_server import READ, grpc_messages, next_batch, open_channel
from demo.object_store import start_weed
from headrace.server import Server, ServerConfig, start_server
from headrace.v1 import shard_service_pb2 as pb

_BATCH = 256
_BATCH_MIB = 16
_RANKS = 8
_PREFETCH_MIB = (64, 256)


def main() -> None:
    """Start the store, write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start_weed(Path(folder)) as weed:
        use_store(weed)
        url = f"s3://{weed.bucket}/images"
        write_images(url, arguments.shards)
        print(
            f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
            f"SeaweedFS on the loopback, {arguments.batches} batches of {_BATCH_MIB} MiB, medians "
            f"of {arguments.rounds}, load {os.getloadavg()[0]:.1f}"
        )
        print(f"{'prefetch_bytes':<16}{'alone MiB/s':>12}{'runs MiB/s':>12}{'blocks a read':>15}")
        for prefetch_mib in _PREFETCH_MIB:
            both = [
                [
                    _read(url, arguments.batches, prefetch_mib, alone=alone)
                    for alone in (True, False)
                ]
                for _ in range(arguments.rounds)
            ]
            alone, runs = (statistics.median(pair[which][0] for pair in both) for which in (0, 1))
            blocks = statistics.median(pair[1][1] for pair in both)
            print(f"{prefetch_mib:>10} MiB  {alone:>12.0f}{runs:>12.0f}{blocks:>15.1f}")


def _read(url: str, batches: int, prefetch_mib: int, *, alone: bool) -> tuple[float, float]:
    """Return how many MiB of batches a second came, and how many blocks a read."""
    request = pb.ReadBatchesRequest(
        dataset="images",
        global_batch_size=_BATCH,
        world_size=_RANKS,
        epoch_start=pb.EpochStart(),
    ).SerializeToString()
    config = ServerConfig(
        datasets={"images": url}, listen="127.0.0.1:0", prefetch_bytes=prefetch_mib << 20
    )
    with start_server(config) as server, open_channel(server.address) as channel:
        if alone:
            server._catalog.get("images").source.run_blocks = 1
        began = time.perf_counter()
        with closing(grpc_messages(channel, READ, request)) as messages:
            for _ in range(batches):
                next_batch(messages)
        seconds = time.perf_counter() - began
        return batches * _BATCH_MIB / seconds, _count(server, "fetched_blocks_total") / _count(
            server, "fetch_seconds_count"
        )


def _count(server: Server, name: str) -> float:
    found = server._metrics.registry.get_sample_value(
        f"headrace_store_{name}", {"dataset": "images"}
    )
    assert found is not None
    return found


if __name__ == "__main__":
    main()
