"""What a stored index saves: opening a source by itself and by its index.

Run: ``python tests/benchmarks/bench_index.py [--files 5000] [--shards 100000]``. The ceiling is a
listing of the files, which both need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.storage import open_dataset, store_index

_COLUMNS, _ROWS = 20, 100


def main() -> None:
    """Print a line a source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--shards", type=int, default=100_000)
    wanted = parser.parse_args()
    print(f"# {platform.platform()}, {os.cpu_count()} cores, pyarrow {pa.__version__}, local disk")
    print(f"{'source':24} {'by itself s':>12} {'index s':>9} {'by index s':>11} {'index kB':>9}")
    with tempfile.TemporaryDirectory() as folder:
        _measure(f"parquet, {wanted.files} files", folder, lambda d: _parquet(d, wanted.files))
    with tempfile.TemporaryDirectory() as folder:
        _measure(f"mds, {wanted.shards} shards", folder, lambda d: _mds(d, wanted.shards))


def _measure(name: str, folder: str, write: Callable[[Path], None]) -> None:
    source, url = Path(folder, "source"), str(Path(folder, "index"))
    source.mkdir()
    write(source)
    alone = _seconds(lambda: open_dataset(str(source)).close())
    storing = _seconds(lambda: store_index(str(source), url))
    by_index = _seconds(lambda: open_dataset(url).close())
    [index] = Path(url, "manifests").iterdir()
    kilobytes = index.stat().st_size / 1000
    print(f"{name:24} {alone:12.2f} {storing:9.2f} {by_index:11.2f} {kilobytes:9.0f}")


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _parquet(folder: Path, count: int) -> None:
    table = pa.table({f"column {i}": np.arange(_ROWS) for i in range(_COLUMNS)})
    for number in range(count):
        pq.write_table(table, folder / f"{number:06d}.parquet")


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
