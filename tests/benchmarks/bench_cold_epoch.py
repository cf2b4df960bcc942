"""Compare what an epoch reads of a store with latency with what ``headrace shuffle`` prints.

``PYTHONPATH=tests python tests/benchmarks/bench_cold_epoch.py [--gib 20]`` serves a dataset of so
many GiB from a range server (`support.slow_store`, 20 ms to the first byte) with a real
``headrace serve`` whose cache is ``shuffle_bytes``, reads one epoch with the client, and prints
GETs and bytes as the store counted them beside those computed. It ends with 1 where they differ by
more than 5 %, or where a sample came twice, not at all, or with another's bytes.

Below these it prints what docs/sizing.md sizes by formula beside what was counted: reads and
their price, the server's memory at its largest, and bytes between server and trainer (those of the
loopback less those of the store, so nothing else may use it: run it by ``unshare -n`` where
something does). These may differ by 10 %; of the memory, which is a bound, not more may be used.

The dataset is one real shard of 64 MiB under many names, hard links of one file, so it takes 64 MiB
of disk and its checksums are right. To the server these are different shards: it knows blocks by
their place, not by what they hold.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from headrace.bench.children import serving
from headrace.client import Order, RemoteDataset
from headrace.storage import ShardWriter, commit_dataset, open_dataset, open_store
from support.command import run_new as run
from support.slow_store import SlowStore, reached, slow_store

if TYPE_CHECKING:
    from torch import Tensor

_GIB, _MIB = 1 << 30, 1 << 20
_SHARD_BYTES = 64 * _MIB
_MOST = 0.05
_MOST_SIZE = 0.1
_FETCH_THREADS = 64  # the default
_UNBOUNDED = 1e6


@dataclass(frozen=True, slots=True)
class _Read:
    gets: int
    fetched: int
    others: int
    seconds: float
    server_s: float
    server_bytes: int
    loopback_bytes: int


def write(folder: Path, *, gib: float, sample_bytes: int) -> int:
    """Write shards of random samples, all with the same content; return samples of a shard."""
    store = open_store(str(folder))
    columns: dict[str, pa.DataType] = {"number": pa.int64(), "content": pa.binary()}
    schema = pa.schema(columns)
    random = np.random.default_rng(0)
    count = _SHARD_BYTES // sample_bytes
    with ShardWriter(store, "00000.arrow", schema=schema) as writer:
        for first in range(0, count, 64):
            numbers = np.arange(first, min(first + 64, count))
            content = [random.bytes(sample_bytes) for _ in numbers]
            table = pa.table({"number": pa.array(numbers), "content": pa.array(content)})
            for batch in table.cast(schema).to_batches():
                writer.append(batch)
        entry = writer.close()
    (shard,) = folder.rglob("00000.arrow")
    entries = [
        dataclasses.replace(entry, name=f"{number:05d}.arrow")
        for number in range(max(1, round(gib * _GIB / entry.stored_bytes)))
    ]
    for each in entries[1:]:
        shard.with_name(each.name).hardlink_to(shard)
    commit_dataset(store, schema, entries)
    store.close()
    return count


def _loopback_bytes() -> int:
    """Return the bytes that this machine has sent to itself."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    return 0


def _largest_memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def read_epoch(
    url: str,
    store: SlowStore,
    order: Order,
    *,
    batch_size: int,
    shard_samples: int,
    cache_bytes: int,
) -> _Read:
    """Read an epoch through a server; check that each sample comes once, with its own number."""
    options = (f"--cache-bytes={cache_bytes}",)
    with serving({"big": url}, *options, "--log-level=warning") as server:
        before, began, sent = store.counted(), time.perf_counter(), _loopback_bytes()
        sample_ids = []
        dataset = RemoteDataset(
            server.address,
            "big",
            batch_size=batch_size,
            epochs=1,
            end="uneven",
            order=replace(order, with_ids=True),
        )
        for batch in dataset:
            # A copy, since the column keeps all of its batch in memory.
            own = cast("Tensor", batch.sample_ids).numpy().copy()
            if (batch["number"].numpy() != own % shard_samples).any():
                sys.exit("a sample came with the bytes of another")
            sample_ids.append(own)
        seconds = time.perf_counter() - began
        sent = _loopback_bytes() - sent
        counted, server_s = store.counted().since(before), server.processor_s()
        server_bytes = _largest_memory(server.process.pid)
    seen = np.sort(np.concatenate(sample_ids))
    if (seen != np.arange(seen.size)).any():
        sys.exit("a sample came twice, or not at all")
    gets, fetched, others = counted.gets, counted.bytes, counted.others
    return _Read(gets, fetched, others, seconds, server_s, server_bytes, sent - fetched)


def main() -> None:
    """Write, serve, read, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=20.0, help="size of the dataset")
    parser.add_argument("--sample-bytes", type=int, default=64 << 10)
    parser.add_argument("--run-mib", type=int, default=2)
    parser.add_argument(
        "--shuffle-mib", type=int, help="2 GiB, or a tenth of the data where that is less"
    )
    parser.add_argument("--batch-size", type=int, help="a 128th of what is shuffled together")
    parser.add_argument("--delay-ms", type=float, default=20.0)
    given = parser.parse_args()
    shuffle_bytes = (given.shuffle_mib or min(2048, int(given.gib * 1024) // 10)) * _MIB
    batch_size = given.batch_size or max(1, shuffle_bytes // 128 // given.sample_bytes)
    order = Order(run_bytes=given.run_mib * _MIB, shuffle_bytes=shuffle_bytes)
    with (
        tempfile.TemporaryDirectory() as folder,
        slow_store(
            Path(folder), median_ms=given.delay_ms, p99_ms=given.delay_ms, mb_per_s=_UNBOUNDED
        ) as store,
        reached(store),
    ):
        shard_samples = write(Path(folder, "big"), gib=given.gib, sample_bytes=given.sample_bytes)
        url = "s3://bucket/big"
        with open_dataset(f"{folder}/big") as dataset:
            stored_bytes, raw_bytes = dataset.stored_bytes, dataset.raw_bytes
            shard_bytes = int(dataset.shard_raw_bytes[0])
            block_bytes = int(dataset.block_raw_bytes(np.zeros(1, np.int64))[0])
        choice = (f"--run-bytes={given.run_mib}MiB", f"--shuffle-bytes={shuffle_bytes}")
        printed = run("shuffle", url, "--json", *choice, f"--batch-size={batch_size}")
        computed = json.loads(printed.stdout)
        found = read_epoch(
            url,
            store,
            order,
            batch_size=batch_size,
            shard_samples=shard_samples,
            cache_bytes=shuffle_bytes,
        )
    gib = stored_bytes / _GIB
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}; {gib:.1f} GiB stored, samples of "
        f"{given.sample_bytes} B, batches of {batch_size}, runs of {given.run_mib} MiB, "
        f"cache and shuffle_bytes {shuffle_bytes // _MIB} MiB, {given.delay_ms:g} ms"
    )
    print(
        f"{found.seconds:.0f} s, {gib * 1024 / found.seconds:.0f} MiB/s, server "
        f"{found.server_s / gib:.1f} CPU s/GiB, {found.others} requests for anything but shards"
    )
    reads = computed["reads_per_gib"]
    rows = [
        ("GETs a GiB", found.gets / gib, reads),
        ("fetched / stored", found.fetched / stored_bytes, 1.0),
    ]
    print(f"{'':<18}{'counted':>10}{'shuffle':>10}{'':>4}")
    for name, counted, shown in rows:
        print(f"{name:<18}{counted:>10.3f}{shown:>10.3f}{counted / shown - 1:>+8.1%}")
    if any(abs(counted / shown - 1) > _MOST for _, counted, shown in rows):
        sys.exit(f"they differ by more than {_MOST:.0%}")
    shard_runs = math.ceil(
        math.ceil(shard_bytes / block_bytes) / max(1, order.run_bytes // block_bytes)
    )
    gets = raw_bytes / shard_bytes * shard_runs
    # One stream, orders that take nothing, and of the formula's reads what may be under way.
    payload_bytes = batch_size * shard_bytes / shard_samples
    memory = (310 + 4) * _MIB + shuffle_bytes + 4 * payload_bytes + 6 * _MIB
    memory += _FETCH_THREADS * _MIB + min(128 * _MIB, shuffle_bytes // 4)
    sizes = [
        ("reads of the store", float(found.gets), gets),
        ("their price, $", found.gets * 0.4e-6, gets * 0.4e-6),
        ("to trainers, MiB", found.loopback_bytes / _MIB, 1.05 * raw_bytes / _MIB),
        ("memory, MiB", found.server_bytes / _MIB, memory / _MIB),
    ]
    print(f"{'':<18}{'counted':>10}{'formula':>10}")
    for name, counted, shown in sizes:
        print(f"{name:<18}{counted:>10.4g}{shown:>10.4g}{counted / shown - 1:>+8.1%}")
    if any(abs(counted / shown - 1) > _MOST_SIZE for _, counted, shown in sizes[:-1]):
        sys.exit(f"a formula is wrong by more than {_MOST_SIZE:.0%}")
    if sizes[-1][1] > sizes[-1][2]:
        sys.exit("the server took more memory than the formula says")


if __name__ == "__main__":
    main()
