"""What a stored index saves: opening a source by itself and by its index.

Run: ``python tests/benchmarks/bench_index.py [--files 5000] [--shards 100000] [--tars 500]``. Each
opening is in a process of its own, which says how far its memory grew at most. The ceiling is a
listing of the files, which both need. Parquet files are one file by many names.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.storage import store_index

_COLUMNS, _ROWS = 20, 100
_MOST_LINKS = 50_000  # ext4 has 65,000 of a file


def main() -> None:
    """Print a line a source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--tars", type=int, default=500)
    wanted = parser.parse_args()
    print(f"# {platform.platform()}, {os.cpu_count()} cores, pyarrow {pa.__version__}, local disk")
    print(
        f"{'source':24} {'by itself s':>12} {'grown MiB':>10} {'index s':>9} {'by index s':>11} "
        f"{'grown MiB':>10} {'index kB':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        _measure(f"parquet, {wanted.files} files", folder, lambda d: _parquet(d, wanted.files))
    with tempfile.TemporaryDirectory() as folder:
        _measure(f"mds, {wanted.shards} shards", folder, lambda d: _mds(d, wanted.shards))
    with tempfile.TemporaryDirectory() as folder:
        _measure(f"webdataset, {wanted.tars} tars", folder, lambda d: _tars(d, wanted.tars))


def _measure(name: str, folder: str, write: Callable[[Path], None]) -> None:
    source, url = Path(folder, "source"), str(Path(folder, "index"))
    source.mkdir()
    write(source)
    alone_s, alone_grown = _opened(str(source))
    start = time.perf_counter()
    store_index(str(source), url)
    storing = time.perf_counter() - start
    indexed_s, indexed_grown = _opened(f"{url} from {source}")
    [index] = Path(url, "manifests").iterdir()
    kilobytes = index.stat().st_size / 1000
    print(
        f"{name:24} {alone_s:12.2f} {alone_grown:10.0f} {storing:9.2f} {indexed_s:11.2f} "
        f"{indexed_grown:10.0f} {kilobytes:9.0f}"
    )


_OPEN = """
import sys, time
import headrace.storage.mds.stored_index, headrace.storage.parquet, headrace.storage.webdataset
from headrace.storage.open import arrow_source
from headrace.storage.store.local import local_store
from headrace.storage import open_dataset

def most():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

before, start = most(), time.perf_counter()
open_dataset(sys.argv[1]).close()
print(time.perf_counter() - start, (most() - before) / 1024)
"""


def _opened(url: str) -> tuple[float, float]:
    """Return seconds and MiB of opening in a new process; medians of three (Linux)."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", _OPEN, url], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(3)
    ]
    seconds, grown = (statistics.median(map(float, column)) for column in zip(*runs, strict=True))
    return seconds, grown


def _tars(folder: Path, count: int) -> None:
    for number in range(count):
        with tarfile.open(folder / f"{number:06d}.tar", "w") as tar:
            for sample in range(_ROWS):
                for ending, size in (("jpg", 2000), ("cls", 1)):
                    member = tarfile.TarInfo(f"{number:06d}{sample:06d}.{ending}")
                    member.size = size
                    tar.addfile(member, io.BytesIO(b"1" * size))


def _parquet(folder: Path, count: int) -> None:
    table = pa.table({f"column {i}": np.arange(_ROWS) for i in range(_COLUMNS)})
    names = [folder / f"{number:06d}.parquet" for number in range(count)]
    for first in range(0, count, _MOST_LINKS):
        pq.write_table(table, names[first])
        for name in names[first + 1 : first + _MOST_LINKS]:
            os.link(names[first], name)


def _mds(folder: Path, count: int) -> None:
    shards = [
        {
            "column_encodings": ["int", "str"],
            "column_names": ["number", "text"],
            "column_sizes": [8, None],
            "compression": None,
            "format": "mds",
            "hashes": ["xxh3_64"],
            "raw_data": {
                "basename": f"shard.{number:06d}.mds",
                "bytes": 67_108_000,
                "hashes": {"xxh3_64": f"{number:016x}"},
            },
            "samples": 1000,
            "size_limit": 1 << 26,
            "version": 2,
            "zip_data": None,
        }
        for number in range(count)
    ]
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


if __name__ == "__main__":
    main()
