"""Measure converting images against plain copies of the same bytes to the same store.

``PYTHONPATH=examples:tests python tests/benchmarks/bench_convert_images.py`` makes files of random
bytes that begin as JPEG does, in folders named by labels, and prints MiB/s and the ratio to the
copies, on a local disk and then in a real S3 server (SeaweedFS) on this machine, which shares the
cores:

- ``convert``: `convert_files`, what ``headrace convert`` does with a folder of images;
- ``Spark``: ``binaryFile`` and `write_shards`, in local mode with a thread a core;
- ``files``: each file copied by itself, as ``aws s3 cp --recursive`` does;
- ``bytes``: the ceiling: the files read one after another, and their bytes alone written in pieces
  of 64 MiB, by as many threads as there are cores.

What is written to the disk is flushed to it, by the copies as by us.
The files are in the page cache for all of them, ways take turns within a round, and medians of
rounds are printed. ``--store`` and ``--ways`` choose a part of it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench_convert import spark_session
from demo.object_store import Weed, start_weed
from headrace.converter import convert_files, write_shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LABELS = 10
_WAYS = ("convert", "Spark", "files", "bytes")
_PIECE_BYTES = 64 << 20
_UPLOADS = 8  # at once, for files alone; twice as many gained nothing


def main() -> None:
    """Make the files, then measure store after store."""
    arguments = _arguments()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, {arguments.images} images of "
        f"{arguments.kib} KiB, load {os.getloadavg()[0]:.1f}, medians of {arguments.rounds} rounds"
    )
    print(f"{'store':<6}" + "".join(f"{way + ' MiB/s':>15}{'ratio':>7}" for way in arguments.ways))
    with tempfile.TemporaryDirectory() as folder, _session(folder, arguments.ways) as spark:
        files = _make_images(Path(folder, "images"), arguments.images, arguments.kib << 10)
        if "disk" in arguments.stores:
            _measure("disk", _Copies(files, Path(folder, "out"), None), spark, arguments)
        if "s3" in arguments.stores:
            with start_weed(Path(folder, "weed")) as weed:
                os.environ.update(weed.environment())
                _measure("s3", _Copies(files, Path("out"), weed), spark, arguments)


class _Copies:
    """Plain copies of files into one store."""

    def __init__(self, files: Sequence[Path], out: Path, weed: Weed | None) -> None:
        self.files = files
        self.source = files[0].parents[1]
        self.size = sum(path.stat().st_size for path in files)
        self.url = weed.url(str(out)) if weed else str(out)
        self._out = out
        self._client = weed.client() if weed else None
        self._bucket = weed.bucket if weed else ""

    def copy_files(self) -> None:
        """Write an object for each file."""
        with ThreadPoolExecutor(_UPLOADS if self._client else os.cpu_count()) as pool:
            named = ((str(path.relative_to(self.source)), [path]) for path in self.files)
            list(pool.map(lambda one: self._put(*one), named))

    def copy_bytes(self) -> None:
        """Write all bytes in large objects."""
        each = max(1, _PIECE_BYTES // self.files[0].stat().st_size)
        starts = range(0, len(self.files), each)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda at: self._put(str(at), self.files[at : at + each]), starts))

    def clear(self) -> None:
        """Remove what was written by anyone."""
        if self._client is None:
            shutil.rmtree(self._out)
            return
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=str(self._out)):
            for found in page.get("Contents", ()):
                self._client.delete_object(Bucket=self._bucket, Key=found["Key"])

    def _put(self, name: str, files: Sequence[Path]) -> None:
        target = self._out / name
        if self._client is None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                for path in files:
                    out.write(path.read_bytes())
                out.flush()
                os.fsync(out.fileno())
        else:
            body = b"".join(path.read_bytes() for path in files)
            self._client.put_object(Bucket=self._bucket, Key=str(target), Body=body)


def _measure(
    store: str, copies: _Copies, spark: SparkSession | None, arguments: argparse.Namespace
) -> None:
    ways: dict[str, Callable[[], object]] = {
        "convert": lambda: convert_files(str(copies.source), copies.url, source_format="images"),
        "Spark": lambda: _write_with(spark, copies),
        "files": copies.copy_files,
        "bytes": copies.copy_bytes,
    }
    spans: dict[str, list[float]] = {way: [] for way in arguments.ways}
    for round_number in range(arguments.rounds + 1):
        for way, taken in spans.items():
            start = time.perf_counter()
            ways[way]()
            if round_number:  # the first one warms up
                taken.append(time.perf_counter() - start)
            copies.clear()
    rates = {way: copies.size / 2**20 / statistics.median(found) for way, found in spans.items()}
    most = rates.get("bytes", float("nan"))
    print(
        f"{store:<6}" + "".join(f"{rate:>15,.0f}{rate / most:>7.2f}" for rate in rates.values()),
        flush=True,
    )


def _write_with(spark: SparkSession | None, copies: _Copies) -> None:
    assert spark is not None
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", value=True)
    write_shards(reader.load(str(copies.source)).select("path", "content"), copies.url)


def _make_images(folder: Path, count: int, size: int) -> list[Path]:
    """Write files that begin and end as JPEG does, and do not compress."""
    files = []
    for number in range(count):
        path = folder / f"label-{number % _LABELS}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff\xda" + os.urandom(size - 6) + b"\xff\xd9")
        files.append(path)
    return files


@contextlib.contextmanager
def _session(folder: str, ways: Sequence[str]) -> Iterator[SparkSession | None]:
    if "Spark" not in ways:
        yield None
        return
    spark = spark_session(Path(folder), "local[*]")
    try:
        yield spark
    finally:
        spark.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--kib", type=int, default=110)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stores", nargs="+", choices=["disk", "s3"], default=["disk", "s3"])
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=list(_WAYS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
