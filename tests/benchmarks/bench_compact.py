"""How fast ``headrace compact`` rewrites small shards, beside copying the same bytes.

``PYTHONPATH=tests python tests/benchmarks/bench_compact.py [--mib 512] [--shard-kib 64]`` writes a
dataset of small shards to a local folder, compacts it, and prints the raw MiB a second, processor
time and the most memory that the command took; beside it the rate of reading each shard and
writing its bytes once more, which is the least that a compaction can do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import tempfile
import time

import numpy as np
import pyarrow as pa

from headrace.storage import ShardWriter, commit_dataset, open_store
from support.command import HEADRACE

_MIB = 1 << 20


def write(url: str, *, mib: int, shard_kib: int) -> int:
    """Write rows of 1 KiB in small shards; return how many shards there are."""
    store = open_store(url)
    random = np.random.default_rng(0)
    columns: dict[str, pa.DataType] = {"number": pa.int64(), "content": pa.binary()}
    schema = pa.schema(columns)
    count = mib * 1024 // shard_kib
    entries = []
    for shard in range(count):
        content = [random.bytes(1016) for _ in range(shard_kib)]
        batch = pa.record_batch([pa.array(range(shard_kib)), pa.array(content)], schema=schema)
        with ShardWriter(store, f"{shard:06d}.arrow", schema=schema) as writer:
            writer.append(batch)
            entries.append(writer.close())
    commit_dataset(store, schema, entries)
    store.close()
    return count


def copy(url: str, to: str) -> float:
    """Read each shard whole and write its bytes again; return the seconds."""
    source, target = open_store(url), open_store(to)
    began = time.perf_counter()
    for name in source.list("shards/"):
        target.write(name, source.read(name))
    return time.perf_counter() - began


def main() -> None:
    """Write, compact, copy, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--shard-kib", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shards = write(f"{folder}/d", mib=given.mib, shard_kib=given.shard_kib)
        copied_s = copy(f"{folder}/d", f"{folder}/copy")
        began = time.perf_counter()
        done = subprocess.run(
            [HEADRACE, "compact", f"{folder}/d", "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        compacted_s = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(done.stdout)
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"{given.mib} MiB in {shards:,} shards, which became {report['shard_count']}"
    )
    print(f"compact  {compacted_s:7.1f} s  {given.mib / compacted_s:8.1f} MiB/s")
    print(f"copy     {copied_s:7.1f} s  {given.mib / copied_s:8.1f} MiB/s")
    print(
        f"processor {(used.ru_utime + used.ru_stime) / given.mib * 1024:.1f} s a GiB, at most "
        f"{used.ru_maxrss / 1024:,.0f} MiB of memory"
    )


if __name__ == "__main__":
    main()
