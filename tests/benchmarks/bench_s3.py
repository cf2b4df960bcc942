"""Measure ranged reads of blocks from S3 against downloads of whole objects.

``PYTHONPATH=examples python tests/benchmarks/bench_s3.py [--shards N] [--rounds N]`` starts a real
S3 server (SeaweedFS) on this machine, writes shards of 64 MiB raw that do not compress, and prints
MiB/s, medians (client and server share the cores), and beside it the processor time that a MiB
costs the client and the store; cores are what the store kept busy:

- ``boto3 loop``: ``get_object`` of whole objects one after another, the loop that is the measure
  in the issue; ``boto3 x8``: eight of them at once;
- ``ranges``: ranged GETs through our store, 64 at once, in the order of a shuffled epoch (random
  over all shards): of a block (about 1 MiB) each, and of 4 and 8 MiB;
- ``boto3 ranges``: plain ranged ``get_object`` of the same bytes, 64 at once;
- ``blocks``: the blocks' bytes verified and decoded (``read_block``).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import boto3
import numpy as np
import pyarrow as pa
from botocore.config import Config

from demo.object_store import Weed, start_weed
from headrace.bench.children import processor_s
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
            "blocks": lambda: _parallel(
                lambda block: dataset.read_block(block).num_rows, blocks, _THREADS
            ),
        }
        for label, ranges in _ranges(places, _SHARD_BYTES).items():
            ways[f"ranges, {label}"] = lambda ranges=ranges: _parallel(  # type: ignore[misc] # a default binds the value of this turn
                lambda at: len(store.read(at.name, offset=at.start, length=at.length)),
                ranges,
                _THREADS,
            )
            ways[f"boto3 ranges, {label}"] = lambda ranges=ranges: _parallel(  # type: ignore[misc] # as above
                lambda at: _range(client, weed.bucket, at), ranges, _THREADS
            )
        costs: dict[str, list[_Cost]] = {way: [] for way in ways}
        for _ in range(rounds + 1):
            for way, run in ways.items():
                costs[way].append(_cost_of(run, weed))
    _print(costs, stored / 2**20)
    store.close()
    client.close()


class _Range(NamedTuple):
    name: str
    start: int
    length: int


def _ranges(places: Sequence[BlockPlace], shard_bytes: int) -> dict[str, list[_Range]]:
    """Return the same bytes in requests of several sizes, each in a random order."""
    found = {"a block": [_Range(at.shard, at.offset, at.stored_bytes) for at in places]}
    random = np.random.default_rng(2)
    for mebibytes in (4, 8):
        ranges = [
            _Range(shard, start, mebibytes << 20)
            for shard in sorted({place.shard for place in places})
            for start in range(0, shard_bytes - 1, mebibytes << 20)
        ]
        found[f"{mebibytes} MiB"] = [ranges[at] for at in random.permutation(len(ranges))]
    return found


class _Cost(NamedTuple):
    """Seconds of one round: by the clock, and of the processors in both processes."""

    wall_s: float
    client_s: float
    store_s: float


def _cost_of(run: Callable[[], object], weed: Weed) -> _Cost:
    start = _Cost(time.perf_counter(), time.process_time(), processor_s(weed.process.pid))
    run()
    end = _Cost(time.perf_counter(), time.process_time(), processor_s(weed.process.pid))
    return _Cost(*(after - before for before, after in zip(start, end, strict=True)))


def _print(costs: dict[str, list[_Cost]], mebibytes: float) -> None:
    medians = {
        way: _Cost(*(statistics.median(values) for values in zip(*found[1:], strict=True)))
        for way, found in costs.items()
    }
    loop = medians["boto3 loop"]
    print(
        f"{'':<24}{'MiB/s':>8}{'of the loop':>13}{'client ms/MiB':>15}{'store ms/MiB':>14}"
        f"{'store cores':>13}{'of the loop':>13}"
    )
    for way, cost in medians.items():
        busy, loop_busy = cost.store_s / cost.wall_s, loop.store_s / loop.wall_s
        print(
            f"{way:<24}{mebibytes / cost.wall_s:>8.0f}{loop.wall_s / cost.wall_s:>13.2f}"
            f"{cost.client_s / mebibytes * 1000:>15.2f}{cost.store_s / mebibytes * 1000:>14.2f}"
            f"{busy:>13.2f}{busy / loop_busy:>13.2f}"
        )


def _parallel(call: Callable[[_T], int], items: Iterable[_T], threads: int) -> int:
    with ThreadPoolExecutor(threads, thread_name_prefix="bench") as pool:
        return sum(pool.map(call, items))


def _object(client: S3Client, bucket: str, shard: str) -> int:
    answer = client.get_object(Bucket=bucket, Key=f"bench/{shard}")
    return len(answer["Body"].read())


def _range(client: S3Client, bucket: str, at: _Range) -> int:
    answer = client.get_object(
        Bucket=bucket,
        Key=f"bench/{at.name}",
        Range=f"bytes={at.start}-{at.start + at.length - 1}",
    )
    return len(answer["Body"].read())


if __name__ == "__main__":
    main()
