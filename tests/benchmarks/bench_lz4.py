"""Measure what compressed messages save, and what they cost.

``PYTHONPATH=tests python tests/benchmarks/bench_lz4.py`` serves five kinds of samples out of a warm
cache to one client on the same machine, and prints for each kind the part of the bytes that is
left, samples in MiB a second by ``Transport("grpc")`` and by ``Transport("lz4")``, the processor
seconds of client and server together a GiB of samples, and the bandwidth below which compression
pays: as fast as the compressed stream goes here, an uncompressed one would need that much. Medians
of interleaved rounds; the parts are what the server's own metrics counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa

from headrace.client import RemoteDataset, Transport
from support.command import Serving, serving
from support.datasets import write_dataset
from support.envoy import free_port

_GIB, _MIB = 1 << 30, 1 << 20
_TEXTS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    batch_size: int
    make: Callable[[np.random.Generator], dict[str, pa.Array[Any]]]


def _tokens(random: np.random.Generator) -> dict[str, pa.Array[Any]]:
    # Ids of a vocabulary, as frequent as words are.
    ids = np.minimum(random.zipf(1.2, (4000, 2048)), 49_999).astype(np.uint16)
    return {"ids": pa.FixedSizeListArray.from_arrays(pa.array(ids.ravel()), 2048)}


def _masks(random: np.random.Generator) -> dict[str, pa.Array[Any]]:
    # Ten shapes on a ground of zeros.
    masks = np.zeros((1000, 128, 128), np.uint8)
    for mask in masks:
        for label in range(1, 11):
            top, left = random.integers(0, 112, 2)
            mask[top : top + 16, left : left + 16] = label
    return {"mask": pa.FixedSizeListArray.from_arrays(pa.array(masks.ravel()), 128 * 128)}


def _texts(random: np.random.Generator) -> dict[str, pa.Array[Any]]:
    whole = "\n".join(page.read_text(encoding="utf-8") for page in sorted(_TEXTS.glob("*.md")))
    starts = random.integers(0, len(whole) - 1500, 10_000)
    return {"text": pa.array([whole[start : start + 1500] for start in starts.tolist()])}


def _floats(random: np.random.Generator) -> dict[str, pa.Array[Any]]:
    values = random.standard_normal((50_000, 80)).astype(np.float32)
    return {"row": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 80)}


def _both(random: np.random.Generator) -> dict[str, pa.Array[Any]]:
    # As large as JPEG files, and as hard to shrink, beside their masks.
    masks = _masks(random)["mask"]
    sizes = random.integers(10_000, 200_000, len(masks)).tolist()
    return {"image": pa.array([random.bytes(size) for size in sizes]), "mask": masks}


_KINDS = (
    _Kind("tokens", 64, _tokens),
    _Kind("masks", 32, _masks),
    _Kind("texts", 256, _texts),
    _Kind("floats", 4096, _floats),
    _Kind("both", 64, _both),
)


@dataclass(frozen=True, slots=True)
class _Found:
    rate: float
    processor_s: float


def main() -> None:
    """Write, serve, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    given = parser.parse_args()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python "
        f"{platform.python_version()}, {given.rounds} rounds of {given.seconds} s"
    )
    print("kind     left   grpc MiB/s  s/GiB   lz4 MiB/s  s/GiB   pays below")
    with tempfile.TemporaryDirectory() as folder:
        for kind in _KINDS:
            table = pa.table(kind.make(np.random.default_rng(7)))
            url = str(Path(folder, kind.name))
            write_dataset(url, table, shard_samples=[table.num_rows], block_bytes=_MIB)
            metrics = f"127.0.0.1:{free_port()}"
            with serving({"d": url}, "--metrics-listen", metrics) as server:
                _print(kind, server, metrics, table.nbytes / table.num_rows, given)


def _print(
    kind: _Kind, server: Serving, metrics: str, row_bytes: float, given: argparse.Namespace
) -> None:
    found: dict[str, list[_Found]] = {"grpc": [], "lz4": []}
    for number in range(given.rounds + 1):
        for way, each in found.items():
            one = _read(server, way, kind.batch_size, row_bytes=row_bytes, seconds=given.seconds)
            if number:  # the first fills the cache
                each.append(one)
    rates = {way: statistics.median(one.rate for one in each) for way, each in found.items()}
    costs = {way: statistics.median(one.processor_s for one in each) for way, each in found.items()}
    print(
        f"{kind.name:8} {_left(metrics):.2f}   {rates['grpc']:8.0f}  {costs['grpc']:6.2f}   "
        f"{rates['lz4']:8.0f}  {costs['lz4']:6.2f}   {rates['lz4'] * 8 * _MIB / 1e9:.1f} Gbit/s",
        flush=True,
    )


def _read(
    server: Serving, way: str, batch_size: int, *, row_bytes: float, seconds: float
) -> _Found:
    dataset = RemoteDataset(
        server.address, "d", batch_size=batch_size, epochs=None, transport=Transport(way)
    )
    with closing(dataset):
        next(iter(dataset))
        size, began = 0.0, time.perf_counter()
        before = time.process_time() + server.processor_s()
        while time.perf_counter() - began < seconds:
            for batch in dataset:
                size += batch.sample_count * row_bytes
                if time.perf_counter() - began > seconds:
                    break
        spent = time.process_time() + server.processor_s() - before
        return _Found(size / _MIB / (time.perf_counter() - began), spent / size * _GIB)


def _left(metrics: str) -> float:
    with urlopen(f"http://{metrics}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    values = dict(re.findall(r"^(headrace_lz4_\w+) (\S+)$", text, re.MULTILINE))
    return float(values["headrace_lz4_sent_bytes_total"]) / float(
        values["headrace_lz4_message_bytes_total"]
    )


if __name__ == "__main__":
    main()
