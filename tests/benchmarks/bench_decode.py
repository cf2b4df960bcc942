"""Measure decoding blocks against plain pyarrow reading the same Arrow files.

``python tests/benchmarks/bench_decode.py [--rounds N]`` writes one shard of each kind of sample
(blocks of 1 MiB, 64 MiB raw) and prints raw MiB/s, files in the page cache:

- plain: ``pyarrow.ipc.open_file`` and ``get_batch`` of each block, one thread;
- ours: ``read_block`` of each block, which also verifies checksum, bounds, offsets and UTF-8;
- plain x2, ours x2: the same blocks by two threads, as a server decodes them (pyarrow's reader
  with a file object a thread);
- plain auto: ``get_batch`` with Arrow's own threads, which decompress the columns of one block on
  all cores, against ours by one thread;
- sums: plain, and the checksum of the same bytes;
- copy: ``bytes(file)``, the ceiling of all.

The ratios ours/plain are of rounds that alternate, so noise falls on all; medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import xxhash

from headrace.storage import (
    Compression,
    Dataset,
    ShardWriter,
    commit_dataset,
    open_dataset,
    open_store,
)

_RAW_BYTES = 64 << 20
_RANDOM = np.random.default_rng(0)


def _numbers() -> pa.RecordBatch:
    count = _RAW_BYTES // 128
    return pa.RecordBatch.from_pydict(
        {f"f{i}": _RANDOM.integers(0, 1000, count).astype(np.float32) for i in range(32)}
    )


def _texts() -> pa.RecordBatch:
    count = _RAW_BYTES // 220
    words = [f"word{i:03d} " for i in range(1000)]
    picks = _RANDOM.integers(0, 1000, (count, 25))
    return pa.RecordBatch.from_pydict(
        {
            "label": _RANDOM.integers(0, 1000, count),
            "text": ["".join([words[i] for i in row]) for row in picks.tolist()],
        }
    )


def _umlauts() -> pa.RecordBatch:
    texts = _texts()
    return pa.RecordBatch.from_pydict(
        {
            "label": texts.column(0),
            "text": [str(text).replace("wo", "wö") for text in texts.column(1).to_pylist()],
        }
    )


def _images() -> pa.RecordBatch:
    count = _RAW_BYTES // 100_000
    return pa.RecordBatch.from_pydict(
        {
            "label": np.arange(count),
            "image": [_RANDOM.bytes(100_000) for _ in range(count)],
        }
    )


def _tensors() -> pa.RecordBatch:
    count = _RAW_BYTES // (3 * 32 * 32)
    values = _RANDOM.integers(0, 40, count * 3 * 32 * 32, np.uint8)
    return pa.RecordBatch.from_pydict(
        {
            "label": np.arange(count),
            "image": pa.FixedSizeListArray.from_arrays(pa.array(values), 3 * 32 * 32),
        }
    )


_CASES: dict[str, tuple[Callable[[], pa.RecordBatch], Compression]] = {
    "32 floats, lz4": (_numbers, "lz4"),
    "text of 200 B, lz4": (_texts, "lz4"),
    "the same, not ASCII": (_umlauts, "lz4"),
    "images of 100 kB, lz4": (_images, "lz4"),
    "images of 100 kB, none": (_images, "none"),
    "3x32x32 bytes, lz4": (_tensors, "lz4"),
    "3x32x32 bytes, zstd": (_tensors, "zstd"),
}
_Way = Literal["plain", "ours", "plain x2", "ours x2", "plain auto", "sums", "copy"]


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"pyarrow {pa.__version__}, raw MiB/s, medians of {rounds} rounds"
    )
    print(
        f"{'':<24}{'plain':>7}{'ours':>7}{'ratio':>7}{'plain x2':>10}{'ours x2':>9}{'ratio':>7}"
        f"{'plain auto':>12}{'ratio':>7}{'sums':>7}{'ratio':>7}{'copy':>8}"
    )
    for name, (make, compression) in _CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            _write(folder, make(), compression)
            _measure(name, Path(folder), rounds)


def _write(folder: str, batch: pa.RecordBatch, compression: Compression) -> None:
    store = open_store(folder)
    with ShardWriter(store, "a.arrow", schema=batch.schema, compression=compression) as writer:
        writer.append(batch)
        entry = writer.close()
    commit_dataset(store, batch.schema, [entry])


def _measure(name: str, folder: Path, rounds: int) -> None:
    path = str(folder / "shards" / "a.arrow")
    with open_dataset(str(folder)) as dataset, ThreadPoolExecutor(2) as pool:
        assert isinstance(dataset, Dataset)
        ways: dict[_Way, Callable[[], None]] = {
            "plain": lambda: _plain(path, range(dataset.block_count), use_threads=False),
            "ours": lambda: _ours(dataset, range(dataset.block_count)),
            "plain x2": lambda: _halves(
                pool, dataset, lambda part: _plain(path, part, use_threads=False)
            ),
            "ours x2": lambda: _halves(pool, dataset, lambda part: _ours(dataset, part)),
            "plain auto": lambda: _plain(path, range(dataset.block_count), use_threads=True),
            "sums": lambda: _sums(path, dataset),
            "copy": lambda: _copy(path),
        }
        times: dict[_Way, list[float]] = {way: [] for way in ways}
        for _ in range(rounds + 1):
            for way, run in ways.items():
                start = time.perf_counter()
                run()
                times[way].append(time.perf_counter() - start)
        speed = {
            way: dataset.raw_bytes / 2**20 / statistics.median(spans[1:])
            for way, spans in times.items()
        }
    print(
        f"{name:<24}{speed['plain']:>7.0f}{speed['ours']:>7.0f}"
        f"{speed['ours'] / speed['plain']:>7.2f}{speed['plain x2']:>10.0f}{speed['ours x2']:>9.0f}"
        f"{speed['ours x2'] / speed['plain x2']:>7.2f}{speed['plain auto']:>12.0f}"
        f"{speed['ours'] / speed['plain auto']:>7.2f}{speed['sums']:>7.0f}"
        f"{speed['ours'] / speed['sums']:>7.2f}"
        f"{speed['copy']:>8.0f}"
    )


def _plain(path: str, blocks: range, *, use_threads: bool) -> None:
    options = pa.ipc.IpcReadOptions(use_threads=use_threads)
    with pa.OSFile(path, "rb") as source:
        reader = pa.ipc.open_file(source, options=options)
        for block in blocks:
            reader.get_batch(block)


def _ours(dataset: Dataset, blocks: range) -> None:
    for block in blocks:
        dataset.read_block(block)


def _sums(path: str, dataset: Dataset) -> None:
    _plain(path, range(dataset.block_count), use_threads=False)
    with pa.OSFile(path, "rb") as source:
        for place in map(dataset.block_place, range(dataset.block_count)):
            source.seek(place.offset)
            xxhash.xxh3_64_intdigest(source.read_buffer(place.stored_bytes))


def _halves(pool: ThreadPoolExecutor, dataset: Dataset, read: Callable[[range], None]) -> None:
    count = dataset.block_count
    list(pool.map(read, [range(count // 2), range(count // 2, count)]))


def _copy(path: str) -> None:
    with Path(path).open("rb", buffering=0) as file:
        file.read()


if __name__ == "__main__":
    main()
