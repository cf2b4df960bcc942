"""Measure reading MDS shards against mosaicml-streaming's own reader, and opening large indexes.

``python tests/benchmarks/bench_mds.py --mosaic PYTHON`` prints, for each kind of sample, the
samples a second of this package (whole shards into Arrow columns) and of Mosaic's reader (each
sample into a dict, as a training gets it), on the same local files, and the ratio; and the time
and memory that an index of 100,000 shards takes in both. ``PYTHON`` is an interpreter that has
mosaicml-streaming; the tests marked `long` leave one at ``.build/mosaic/bin/python``. Shards are
not compressed for the comparison, so that decoding alone differs; a column shows zstd as well,
where Mosaic's figure is that of shards it has unpacked before. The ceiling of a case is copying
the bytes of its shards once, out of the page cache into memory that is used again and again,
which the last column gives. Medians of rounds; files are in the
page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.storage import open_dataset, open_store
from headrace.storage.mds import MdsWriter, commit_mds
from headrace.storage.mds.arrow import array_of, fixed_lists

_RNG = np.random.default_rng(7)
_SHARDS = 100_000
_MOSAIC_READ = """
import json, sys, time
from streaming.base.format import reader_from_json
folder, rounds, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
shards = json.load(open(folder + "/index.json"))["shards"]
readers = [reader_from_json(folder, None, shard) for shard in shards]
spans = []
for _ in range(rounds):
    start, count = time.perf_counter(), 0
    for reader in readers:
        for i in range(min(reader.samples, limit - count)):
            reader[i]
            count += 1
    spans.append((time.perf_counter() - start) / count)
print(json.dumps(spans))
"""
_MOSAIC_OPEN = """
import json, sys, time
from streaming.base.format import reader_from_json
def status(field):
    return int(open("/proc/self/status").read().split(field)[1].split()[0])
before = status("VmRSS:")
start = time.perf_counter()
shards = json.load(open(sys.argv[1] + "/index.json"))["shards"]
readers = [reader_from_json(sys.argv[1], None, shard) for shard in shards]
span = time.perf_counter() - start
print(json.dumps([span, status("VmHWM:") - before, status("VmRSS:") - before]))
"""
_OUR_OPEN = """
import json, sys, time
from headrace.storage import open_dataset
import headrace.storage.mds.source, headrace.storage.store.local
def status(field):
    return int(open("/proc/self/status").read().split(field)[1].split()[0])
before = status("VmRSS:")
start = time.perf_counter()
dataset = open_dataset(sys.argv[1])
span = time.perf_counter() - start
print(json.dumps([span, status("VmHWM:") - before, status("VmRSS:") - before]))
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of sample."""

    name: str
    sample_count: int
    table: Callable[[int], pa.Table]


def main() -> None:
    """Run all cases and print the tables."""
    arguments = _arguments()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"pyarrow {pa.__version__}, medians of {arguments.rounds} rounds"
    )
    print(
        f"{'case':<22}{'raw MiB':>8}{'Mosaic/s':>11}{'headrace/s':>12}{'ratio':>7}"
        f"{'zstd/s':>12}{'MB/s':>8}{'copy MB/s':>11}"
    )
    for case in _CASES:
        _compare(case, rounds=arguments.rounds, mosaic=arguments.mosaic)
    _compare_opening(arguments.mosaic)


def _compare(case: Case, *, rounds: int, mosaic: str | None) -> None:
    table = case.table(case.sample_count)
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder, "plain"), Path(folder, "zstd")
        _write(plain, table, compression=None)
        _write(packed, table, compression="zstd")
        raw_bytes = sum(path.stat().st_size for path in plain.glob("*.mds"))
        ours = statistics.median(_read_s(plain) for _ in range(rounds + 1))
        zstd = statistics.median(_read_s(packed) for _ in range(rounds))
        copy = statistics.median(_copy_s(plain) for _ in range(rounds))
        limit = min(case.sample_count, 50_000)
        theirs = _asked(mosaic, _MOSAIC_READ, str(plain), str(rounds), str(limit))
    rate = case.sample_count / ours
    their_rate = 1 / statistics.median(theirs) if theirs else float("nan")
    print(
        f"{case.name:<22}{raw_bytes / 2**20:>8.1f}{their_rate:>11,.0f}{rate:>12,.0f}"
        f"{rate / their_rate:>7.0f}{case.sample_count / zstd:>12,.0f}"
        f"{raw_bytes / ours / 1e6:>8,.0f}{raw_bytes / copy / 1e6:>11,.0f}"
    )


def _compare_opening(mosaic: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), pa.table({"text": ["x"]}), compression="zstd", hashes=["xxh64"])
        path = Path(folder, "index.json")
        shard = json.loads(path.read_text())["shards"][0]
        entries = [_entry(shard, i) for i in range(_SHARDS)]
        path.write_text(json.dumps({"shards": entries, "version": 2}))
        size = path.stat().st_size
        done = subprocess.run(
            [sys.executable, "-c", _OUR_OPEN, folder], capture_output=True, text=True, check=True
        )
        rows = {
            "headrace": json.loads(done.stdout),
            "Mosaic": _asked(mosaic, _MOSAIC_OPEN, folder),
        }
    print(f"# an index of {_SHARDS:,} shards, {size / 2**20:.0f} MiB of JSON")
    print(f"{'':<22}{'open s':>8}{'peak MiB':>10}{'kept MiB':>10}")
    for name, row in rows.items():
        if row:
            print(f"{name:<22}{row[0]:>8.2f}{row[1] / 1024:>10.0f}{row[2] / 1024:>10.0f}")


def _entry(shard: dict[str, dict[str, object]], i: int) -> dict[str, object]:
    files = {
        part: {**shard[part], "basename": f"shard.{i:05d}.mds{suffix}"}
        for part, suffix in {"raw_data": "", "zip_data": ".zstd"}.items()
    }
    return {**shard, **files}


def _write(
    folder: Path,
    table: pa.Table,
    *,
    compression: str | None,
    hashes: tuple[str, ...] | list[str] = (),
) -> None:
    store = open_store(str(folder))
    with MdsWriter(store, table.schema, compression=compression, hashes=hashes) as writer:
        for batch in table.to_batches():
            writer.append(batch)
        commit_mds(store, writer.close())


def _read_s(folder: Path) -> float:
    with open_dataset(str(folder)) as dataset:
        start = time.perf_counter()
        for block in range(dataset.block_count):
            dataset.read_block(block)
        return time.perf_counter() - start


def _copy_s(folder: Path) -> float:
    paths = list(folder.glob("*.mds"))
    target = bytearray(max(path.stat().st_size for path in paths))
    start = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            file.readinto(target)
    return time.perf_counter() - start


def _asked(python: str | None, script: str, *arguments: str) -> list[float]:
    if python is None:
        return []
    done = subprocess.run(
        [python, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    spans: list[float] = json.loads(done.stdout.splitlines()[-1])
    return spans


def _numbers(count: int) -> pa.Table:
    features = [pa.array(_RNG.random(count, np.float32)) for _ in range(6)]
    names = [f"f{i}" for i in range(6)]
    return pa.table([*features, pa.array(np.arange(count))], [*names, "label"])


def _texts(count: int) -> pa.Table:
    lengths = _RNG.integers(20, 200, count)
    return pa.table({"text": ["x" * length for length in lengths.tolist()]})


def _mixed(count: int) -> pa.Table:
    vectors = array_of(pa.float32(), count * 16, [_RNG.random(count * 16, np.float32)])
    item = pa.field("item", pa.float32(), nullable=False)
    return pa.table(
        {
            "id": np.arange(count),
            "name": [f"sample {i}" for i in range(count)],
            "vector": fixed_lists(vectors, pa.list_(item, 16)),
        }
    )


def _tokens(count: int) -> pa.Table:
    edges = np.concatenate([[0], np.cumsum(_RNG.integers(100, 900, count))]).astype(np.int32)
    values = _RNG.integers(0, 50_000, int(edges[-1]), np.int32)
    items = array_of(pa.int32(), len(values), [values])
    lists = pa.list_(pa.field("item", pa.int32(), nullable=False))
    return pa.table({"tokens": array_of(lists, count, [edges], items=items)})


def _images(count: int) -> pa.Table:
    images = [_RNG.bytes(int(size)) for size in _RNG.integers(50_000, 150_000, count)]
    return pa.table({"image": images, "label": np.arange(count)})


_CASES = (
    Case("7 numbers, 32 B", 1_000_000, _numbers),
    Case("text of 110 B", 500_000, _texts),
    Case("id, name, 16 floats", 500_000, _mixed),
    Case("500 tokens, 2 kB", 50_000, _tokens),
    Case("image of 100 kB", 1_000, _images),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mosaic", help="an interpreter that has mosaicml-streaming")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
