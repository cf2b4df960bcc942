"""Measure opening a manifest of 100,000 shards of 64 blocks, and looking blocks up in it.

``python tests/benchmarks/bench_manifest.py [--mosaic PYTHON]`` prints seconds and memory, each in
a process of its own whose imports are done: opening the dataset; then finding the blocks of 4,096
samples spread over all of it. Beside it: Mosaic's ``index.json`` of as many shards, parsed by
``json`` as its reader does, and by its reader itself where ``PYTHON`` has mosaicml-streaming. The
ceiling of opening is reading and hashing the shard table, which the last row gives. Medians.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.storage import BLOCK_DTYPE, ColumnStats, ShardEntry, commit_dataset, open_store

_SHARDS = 100_000
_BLOCKS = 64
_STATUS = """
import json, sys, time
def status(field):
    return int(open("/proc/self/status").read().split(field)[1].split()[0]) / 1024
def report(start, before):
    span = time.perf_counter() - start
    print(json.dumps([span, status("VmRSS:") - before, status("VmRSS:"), status("VmHWM:")]))
"""
_OURS = """
import numpy as np
from headrace.storage import open_dataset
from headrace.storage.open import arrow_source
from headrace.storage.store.local import local_store
before, start = status("VmRSS:"), time.perf_counter()
dataset = open_dataset(sys.argv[1])
report(start, before)
ids = np.random.default_rng(0).integers(0, dataset.sample_count, 4096)
start = time.perf_counter()
dataset.locate(ids)
report(start, before)
start = time.perf_counter()
dataset.locate(ids)
report(start, before)
"""
_JSON = """
before, start = status("VmRSS:"), time.perf_counter()
shards = json.load(open(sys.argv[1] + "/index.json"))["shards"]
report(start, before)
"""
_MOSAIC = """
from streaming.base.format import reader_from_json
before, start = status("VmRSS:"), time.perf_counter()
shards = json.load(open(sys.argv[1] + "/index.json"))["shards"]
readers = [reader_from_json(sys.argv[1], None, shard) for shard in shards]
report(start, before)
"""


def main() -> None:
    """Make the manifests and print the table."""
    arguments = _arguments()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"pyarrow {pa.__version__}, medians of {arguments.rounds}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        _write_manifest(folder / "ours")
        committed = time.perf_counter() - start
        _write_mosaic(folder)
        tables = {path.name: path.stat().st_size for path in (folder / "ours/manifests").iterdir()}
        shards = next(size for table, size in tables.items() if table.endswith("shards.arrow"))
        blocks = next(size for table, size in tables.items() if table.endswith("blocks.arrow"))
        index = (folder / "index.json").stat().st_size
        print(
            f"# {_SHARDS:,} shards of {_BLOCKS} blocks: shard table {shards / 2**20:.1f} MiB "
            f"({shards / _SHARDS:.0f} bytes a shard), block table {blocks / 2**20:.0f} MiB, "
            f"committed in {committed:.1f} s; Mosaic's index {index / 2**20:.1f} MiB"
        )
        print(f"{'':<38}{'s':>8}{'grown MiB':>11}{'resident':>10}{'peak':>7}")
        ours = _medians(sys.executable, _OURS, folder / "ours", rounds=arguments.rounds)
        labels = ("headrace: open", "  then locate 4,096 samples", "  the same again")
        for label, row in zip(labels, ours, strict=True):
            _print(label, row)
        [parsed] = _medians(sys.executable, _JSON, folder, rounds=arguments.rounds)
        _print("Mosaic: index.json by json", parsed)
        if arguments.mosaic:
            [readers] = _medians(arguments.mosaic, _MOSAIC, folder, rounds=arguments.rounds)
            _print("Mosaic: index.json by its reader", readers)
        print(f"{'ceiling: read and hash the table':<38}{_ceiling_s(folder / 'ours'):>8.3f}")


def _write_manifest(folder: Path) -> None:
    rows = np.zeros(_BLOCKS, BLOCK_DTYPE)
    rows["offset"] = np.arange(_BLOCKS) * 700_000 + 512
    rows["stored_bytes"] = 690_000
    rows["sample_count"] = 500
    rows["raw_bytes"] = 1 << 20
    random = np.random.default_rng(0)
    entries = []
    for number in range(_SHARDS):
        blocks = rows.copy()
        blocks["checksum"] = random.integers(0, 2**63, _BLOCKS, np.uint64)
        name = f"{number // 20:05d}-{number % 20:04d}-{random.bytes(6).hex()}.arrow"
        entries.append(ShardEntry(name, 64 << 20, blocks, (ColumnStats(),) * 3))
    schema = pa.schema([(column, pa.float32()) for column in ("a", "b", "c")])
    commit_dataset(open_store(str(folder)), schema, entries)


def _write_mosaic(folder: Path) -> None:
    files = {"raw_data": "mds", "zip_data": "mds.zstd"}
    shards = [
        {
            "column_encodings": ["float32"] * 3,
            "column_names": ["a", "b", "c"],
            "column_sizes": [4] * 3,
            "compression": "zstd",
            "format": "mds",
            "hashes": ["xxh64"],
            **{
                part: {
                    "basename": f"shard.{number:05d}.{ending}",
                    "bytes": 64 << 20,
                    "hashes": {"xxh64": "0123456789abcdef"},
                }
                for part, ending in files.items()
            },
            "samples": 500 * _BLOCKS,
            "size_limit": 1 << 26,
            "version": 2,
        }
        for number in range(_SHARDS)
    ]
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))


def _medians(python: str, script: str, folder: Path, *, rounds: int) -> list[list[float]]:
    runs = []
    for _ in range(rounds):
        done = subprocess.run(
            [python, "-c", _STATUS + script, str(folder)],
            capture_output=True,
            text=True,
            check=True,
        )
        runs.append([json.loads(line) for line in done.stdout.splitlines()])
    return [
        [statistics.median(values) for values in zip(*reports, strict=True)]
        for reports in zip(*runs, strict=True)
    ]


def _print(label: str, row: list[float]) -> None:
    print(f"{label:<38}{row[0]:>8.3f}{row[1]:>11.0f}{row[2]:>10.0f}{row[3]:>7.0f}")


def _ceiling_s(folder: Path) -> float:
    (path,) = (folder / "manifests").glob("*.shards.arrow")
    times = []
    for _ in range(5):
        start = time.perf_counter()
        hashlib.blake2b(path.read_bytes()).hexdigest()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mosaic", help="an interpreter that has mosaicml-streaming")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
