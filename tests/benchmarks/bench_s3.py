"""Measure ranged reads of blocks from S3 against downloads of whole objects.

``PYTHONPATH=examples python tests/benchmarks/bench_s3.py [--shards N] [--rounds N]`` starts a real
S3 server (SeaweedFS) on this machine, writes shards of 64 MiB raw that do not compress, and prints
MiB/s, medians (client and server share the cores):

- ``ranges``: the blocks' bytes by ranged GETs of about 1 MiB through our store, 64 at once, in
  the order of a shuffled epoch (random over all shards);
- ``blocks``: the same with verifying and decoding (``read_block``);
- ``boto3 loop``: ``get_object`` of whole objects one after another, the loop that is the ceiling
  in the issue; ``boto3 x8``: eight of them at once; ``boto3 ranges``: plain ranged
  ``get_object`` of the same bytes, 64 at once, the ceiling of ``ranges``.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import boto3
import numpy as np
import pyarrow as pa
from botocore.config import Config

from demo.object_store import Weed, start_weed
from headrace.storage import (
    BlockPlace,
    Dataset,
    ShardWriter,
    StoreOptions,
    commit_dataset,
    open_dataset,
    open_store,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_T = TypeVar("_T")
_THREADS = 64
_SHARD_BYTES = 64 << 20
_URL = "s3://shards/bench"


def main() -> None:
    """Start the server, write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start_weed(Path(folder)) as weed:
        options = StoreOptions(
            endpoint=weed.endpoint,
            access_key=weed.access_key,
            secret_key=weed.secret_key,
            region=weed.region,
            max_connections=_THREADS,
        )
        _write(options, arguments.shards)
        print(
            f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
            f"boto3 {boto3.__version__}, SeaweedFS on the loopback, {arguments.shards} shards of "
            f"64 MiB, medians of {arguments.rounds} rounds"
        )
        _measure(weed, options, arguments.rounds)


def _write(options: StoreOptions, shard_count: int) -> None:
    store = open_store(_URL, options=options)
    random = np.random.default_rng(0)
    schema = pa.schema({"image": pa.binary()})
    entries = []
    for number in range(shard_count):
        with ShardWriter(store, f"{number:05d}.arrow", schema=schema) as writer:
            for _ in range(_SHARD_BYTES // (1 << 20)):
                images = [random.bytes(104_000) for _ in range(10)]
                writer.append(pa.RecordBatch.from_pydict({"image": images}, schema=schema))
            entries.append(writer.close())
    commit_dataset(store, schema, entries)
    store.close()


def _measure(weed: Weed, options: StoreOptions, rounds: int) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=weed.endpoint,
        aws_access_key_id=weed.access_key,
        aws_secret_access_key=weed.secret_key,
        region_name=weed.region,
        config=Config(max_pool_connections=_THREADS),
    )
    store = open_store(_URL, options=options)
    with open_dataset(_URL, options=options) as dataset:
        assert isinstance(dataset, Dataset)
        blocks = np.random.default_rng(1).permutation(dataset.block_count).tolist()
        places = [dataset.block_place(block) for block in blocks]
        shards = sorted({place.shard for place in places})
        stored = dataset.stored_bytes
        ways: dict[str, Callable[[], object]] = {
            "boto3 loop": lambda: [_object(client, weed.bucket, shard) for shard in shards],
            "boto3 x8": lambda: _parallel(
                lambda shard: _object(client, weed.bucket, shard), shards, 8
            ),
            "boto3 ranges": lambda: _parallel(
                lambda place: _range(client, weed.bucket, place), places, _THREADS
            ),
            "ranges": lambda: _parallel(
                lambda place: len(
                    store.read(place.shard, offset=place.offset, length=place.stored_bytes)
                ),
                places,
                _THREADS,
            ),
            "blocks": lambda: _parallel(
                lambda block: dataset.read_block(block).num_rows, blocks, _THREADS
            ),
        }
        spans: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds + 1):
            for way, run in ways.items():
                begin = time.perf_counter()
                run()
                spans[way].append(time.perf_counter() - begin)
    speeds = {way: stored / 2**20 / statistics.median(found[1:]) for way, found in spans.items()}
    print(f"{'':<16}{'MiB/s':>8}{'of boto3 loop':>15}{'of boto3 ranges':>17}")
    for way, speed in speeds.items():
        print(
            f"{way:<16}{speed:>8.0f}{speed / speeds['boto3 loop']:>15.2f}"
            f"{speed / speeds['boto3 ranges']:>17.2f}"
        )
    store.close()
    client.close()


def _parallel(call: Callable[[_T], int], items: Iterable[_T], threads: int) -> int:
    with ThreadPoolExecutor(threads, thread_name_prefix="bench") as pool:
        return sum(pool.map(call, items))


def _object(client: S3Client, bucket: str, shard: str) -> int:
    answer = client.get_object(Bucket=bucket, Key=f"bench/{shard}")
    return len(answer["Body"].read())


def _range(client: S3Client, bucket: str, place: BlockPlace) -> int:
    answer = client.get_object(
        Bucket=bucket,
        Key=f"bench/{place.shard}",
        Range=f"bytes={place.offset}-{place.offset + place.stored_bytes - 1}",
    )
    return len(answer["Body"].read())


if __name__ == "__main__":
    main()
