"""Measure finding 500 samples of 10^9 by FindSamples, the first time and later.

``PYTHONPATH=tests python tests/benchmarks/bench_find_samples.py`` serves a dataset of 10^9 samples
in 10^5 shards, of which the manifest alone exists, and asks in which batches of an epoch 500 of its
samples come: all other ones each time, in an epoch that was not looked at before, and then in one
that was. Milliseconds of the call, and the server's processor time; medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time

import grpc
import numpy as np
import pyarrow as pa

from benchmarks.bench_server import process, serve_headrace
from headrace.bench.children import processor_s
from headrace.storage import BLOCK_DTYPE, ColumnStats, ShardEntry, commit_dataset, open_store
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc

_SHARDS, _BLOCKS, _BLOCK_SAMPLES = 100_000, 16, 625
_SAMPLES = _SHARDS * _BLOCKS * _BLOCK_SAMPLES
_FOUND = 500
_RNG = np.random.default_rng(3)


def main() -> None:
    """Write the manifest, ask, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, {_SAMPLES:,} samples in {_SHARDS:,} shards, medians of {rounds}"
    )
    with tempfile.TemporaryDirectory() as folder:
        _write_manifest(folder)
        with process(serve_headrace, folder) as server, grpc.insecure_channel(server.address) as on:
            find = pb_grpc.ShardServiceStub(on).FindSamples
            times: dict[str, list[tuple[float, float]]] = {"first": [], "again": []}
            for epoch in range(rounds):
                for taken in times.values():
                    request = _request(epoch)
                    spent, began = processor_s(server.pid), time.perf_counter()
                    answer = find(request, timeout=60)
                    wall_s = time.perf_counter() - began
                    taken.append((wall_s, processor_s(server.pid) - spent))
                    assert len(answer.rows) == _FOUND
    for name, taken in times.items():
        wall, processor = (statistics.median(column) * 1e3 for column in zip(*taken, strict=True))
        print(
            f"{name}: {wall:.0f} ms, {processor:.0f} ms of the server; the longest"
            f" {max(taken)[0] * 1e3:.0f} ms"
        )


def _request(epoch: int) -> pb.FindSamplesRequest:
    ids = _RNG.integers(0, _SAMPLES, _FOUND)
    batch = pb.GetBatchRequest(
        dataset="bench",
        global_batch_size=4096,
        world_size=64,
        epoch_start=pb.EpochStart(epoch=epoch),
    )
    return pb.FindSamplesRequest(batch=batch, sample_ids=ids.tolist())


def _write_manifest(folder: str) -> None:
    rows = np.zeros(_BLOCKS, BLOCK_DTYPE)
    rows["offset"] = np.arange(_BLOCKS) * (2 << 20) + 512
    rows["stored_bytes"] = 2_000_000
    rows["sample_count"] = _BLOCK_SAMPLES
    rows["raw_bytes"] = _BLOCK_SAMPLES * 3000
    entries = [
        ShardEntry(f"{number:06d}.arrow", 64 << 20, rows, (ColumnStats(),))
        for number in range(_SHARDS)
    ]
    commit_dataset(open_store(folder), pa.schema([("x", pa.float32())]), entries)


if __name__ == "__main__":
    main()
