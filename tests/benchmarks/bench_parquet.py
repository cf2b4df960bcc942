"""Measure reading Parquet row groups as blocks, and opening many files.

Run: ``python tests/benchmarks/bench_parquet.py [--files N]``. The ceiling of reading is plain
pyarrow on the same local files in one thread, with the checksums of pages verified where there
are some; that of opening is pyarrow reading the footers one after another.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.storage.parquet import decode_index, encode_index, open_parquet

_ROUNDS = 15


def numbers(count: int) -> pa.Table:
    """Return 32 columns of doubles."""
    random = np.random.default_rng(0)
    return pa.table({f"x{index}": random.random(count) for index in range(32)})


def texts(count: int) -> pa.Table:
    """Return a label, text of some 200 bytes that does not repeat, and a word that does."""
    random = np.random.default_rng(0)
    columns: dict[str, pa.Array[Any]] = {
        "label": pa.array(random.integers(0, 1000, count)),
        "text": pa.array([f"{value:0200d}" for value in random.integers(0, 2**62, count)]),
        "word": pa.array([f"word {value}" for value in random.integers(0, 100, count)]),
    }
    return pa.table(columns)


def images(count: int) -> pa.Table:
    """Return encoded images of 20 kB."""
    random = np.random.default_rng(0)
    return pa.table({"jpg": [random.bytes(20_000) for _ in range(count)]})


def seconds(*calls: Callable[[], object]) -> list[float]:
    """Return the shortest time of each call; their rounds alternate, so noise falls on all."""
    times = [float("inf")] * len(calls)
    for _ in range(_ROUNDS):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[index] = min(times[index], time.perf_counter() - start)
    return times


def measure_reading(folder: Path) -> None:
    """Print the bytes of samples a second, with what plain pyarrow does in brackets."""
    print(
        "\n| samples | row group | MB/s, pages without checksums | ratio | with checksums | ratio |"
    )
    print("|---|---|---|---|---|---|")
    cases = {
        "32 doubles": (numbers(40_000), 4_000),
        "32 doubles, large": (numbers(40_000), 40_000),
        "texts": (texts(50_000), 5_000),
        "images": (images(1000), 50),
    }
    for name, (table, group) in cases.items():
        cells = [name, f"{table.nbytes * group / len(table) / 2**20:.1f} MiB"]
        for checksums in (False, True):
            path = folder / "one.parquet"
            pq.write_table(table, path, row_group_size=group, write_page_checksum=checksums)
            ours, plain = reading_times(path)
            speeds = [table.nbytes / time_s / 1e6 for time_s in (ours, plain)]
            cells += [f"{speeds[0]:.0f} ({speeds[1]:.0f})", f"{plain / ours:.2f}"]
        print(f"| {' | '.join(cells)} |")


def reading_times(path: Path) -> list[float]:
    """Return the seconds that all of a file takes us, and pyarrow; both check what is there."""
    with (
        open_parquet(str(path)) as dataset,
        pq.ParquetFile(path, page_checksum_verification=True) as plain,
    ):
        blocks = range(dataset.block_count)
        return seconds(
            lambda: [dataset.read_block(block) for block in blocks],
            lambda: [plain.read_row_group(block, use_threads=False) for block in blocks],
        )


def measure_opening(folder: Path, count: int) -> None:
    """Print how long many files take to open."""
    table = texts(1000)
    pq.write_table(table, folder / "one.parquet", row_group_size=250)
    content = (folder / "one.parquet").read_bytes()
    many = folder / "many"
    many.mkdir()
    for index in range(count):
        (many / f"{index:06}.parquet").write_bytes(content)
    files = sorted(many.iterdir())
    with open_parquet(str(many)) as dataset:
        stored = encode_index(dataset.index)
    opened, plain, indexed = seconds(
        lambda: open_parquet(str(many)).close(),
        lambda: [pq.read_metadata(file) for file in files],
        lambda: open_parquet(str(many), index=decode_index(stored, place="memory")).close(),
    )
    print(f"\n{count} files of 4 row groups, seconds:")
    print("\n| headrace | pyarrow, footers alone | headrace, stored index | index, bytes a file |")
    print("|---|---|---|---|")
    print(f"| {opened:.2f} | {plain:.2f} | {indexed:.3f} | {len(stored) / count:.0f} |")


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, pyarrow {pa.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        measure_reading(Path(folder))
        measure_opening(Path(folder), arguments.files)


if __name__ == "__main__":
    main()
