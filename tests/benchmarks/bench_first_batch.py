"""Measure how long the first batch takes: from a warm server, and from a cold cache on S3.

``PYTHONPATH=examples:tests python tests/benchmarks/bench_first_batch.py`` starts a real S3 server
(SeaweedFS) on this machine, writes images of 64 KiB in shards of 64 MiB, and prints the time from
the request to the last byte of a batch of 256 shuffled with the default window: at the start of an
epoch and where a run resumes in its middle. Each cold figure is of a fresh server, which has opened
the dataset and holds no block; each warm one of the same server asked again. An epoch of several
windows of 1 GiB begins with small ones, so take more than 16 shards.
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

import grpc
import numpy as np
import pyarrow as pa

from benchmarks.bench_server import READ, grpc_messages, next_batch, open_channel
from demo.object_store import Weed, start_weed
from headrace.server import ServerConfig, start_server
from headrace.storage import ShardWriter, StoreOptions, commit_dataset, open_store
from headrace.v1 import shard_service_pb2 as pb

_BATCH = 256
_IMAGE_BYTES = 64 << 10
_SHARD_IMAGES = (64 << 20) // _IMAGE_BYTES


def main() -> None:
    """Start the store, write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start_weed(Path(folder)) as weed:
        use_store(weed)
        url = f"s3://{weed.bucket}/images"
        write_images(url, arguments.shards)
        print(
            f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
            f"SeaweedFS on the loopback, {arguments.shards} shards of 64 MiB, medians of "
            f"{arguments.rounds}, load {os.getloadavg()[0]:.1f}"
        )
        print(f"{'first batch, ms':<24}{'cold':>8}{'worst':>8}{'warm':>8}{'worst':>8}")
        middle = arguments.shards * _SHARD_IMAGES // 2
        for name, position in (("of an epoch", 0), ("in its middle", middle)):
            times = [_times_ms(url, position) for _ in range(arguments.rounds)]
            cold, warm = zip(*times, strict=True)
            print(
                f"{name:<24}{statistics.median(cold):>8.0f}{max(cold):>8.0f}"
                f"{statistics.median(warm):>8.1f}{max(warm):>8.1f}"
            )


def _times_ms(url: str, position: int) -> tuple[float, float]:
    request = pb.ReadBatchesRequest(
        dataset="images",
        global_batch_size=_BATCH,
        world_size=1,
        epoch_start=pb.EpochStart(position=position),
    )
    config = ServerConfig(datasets={"images": url}, listen="127.0.0.1:0")
    with start_server(config) as server, open_channel(server.address) as channel:
        cold, warm = (_first_ms(channel, request.SerializeToString()) for _ in range(2))
    return cold, warm


def _first_ms(channel: grpc.Channel, request: bytes) -> float:
    began = time.perf_counter()
    with closing(grpc_messages(channel, READ, request)) as messages:
        next_batch(messages)
        return (time.perf_counter() - began) * 1000


def use_store(weed: Weed) -> None:
    """Let servers of this process read from a store."""
    os.environ |= {
        "AWS_ENDPOINT_URL": weed.endpoint,
        "AWS_ACCESS_KEY_ID": weed.access_key,
        "AWS_SECRET_ACCESS_KEY": weed.secret_key,
        "AWS_REGION": weed.region,
        "AWS_DEFAULT_REGION": weed.region,
    }


def write_images(url: str, shard_count: int) -> None:
    """Write shards of 64 MiB of images that cannot be compressed."""
    store = open_store(url, options=StoreOptions())
    random = np.random.default_rng(0)
    schema = pa.schema([pa.field("image", pa.binary(), nullable=False)])
    entries = []
    for number in range(shard_count):
        with ShardWriter(store, f"{number:05d}.arrow", schema=schema) as writer:
            for _ in range(_SHARD_IMAGES // 16):
                images = [random.bytes(_IMAGE_BYTES) for _ in range(16)]
                writer.append(pa.RecordBatch.from_pydict({"image": images}, schema=schema))
            entries.append(writer.close())
    commit_dataset(store, schema, entries)
    store.close()


if __name__ == "__main__":
    main()
