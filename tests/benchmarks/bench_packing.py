"""What packed rows cost a server, beside rows of one length, and how full they are.

    PYTHONPATH=tests:examples python tests/benchmarks/bench_packing.py

The same documents are stored twice: as lists of tokens, packed when they are served, and cut into
rows of one length before, as a dataset of arrays. Servers in processes of their own stream both;
printed is the processor time a million tokens, the median of interleaved rounds, and the ratio,
which is to be at most 1.3; and the same for batches of documents, of any lengths and in buckets of
like length (``buckets=64``). Before that come, without a server, the share of real tokens, how many
pairs of documents that shared a row share one again in the next epoch, and the time that packing a
group takes.

``--peers`` reads the same documents with loops of headrace, LitData's `TokensLoader` and MosaicML
Streaming with a collator that packs (`packing_child.py`), whose environment is made the first time,
and prints real tokens a second, the processor time of all processes, and the share of real tokens.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.peers.libraries import library_of
from headrace.bench.children import Serving, serving
from headrace.cli.stored.row_counter import row_counter
from headrace.client import RemoteDataset
from headrace.order.packing import PackedGroup, Packing, group_row_count, pack_group, packing_key
from headrace.server.order_stages.packing.packed_rows import fit
from headrace.storage import RowOptions, index_packing
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from support.asking import asking
from support.datasets import write_dataset

_BOUND = 1.3
_SHARDS = 4
_BUCKETS = 64
_DOCUMENTS = 64
"""Of a batch that is not packed."""


def main() -> int:
    """Print both tables; return 1 if packed rows cost more than they may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--batch", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--no-packings", action="store_true", help="leave out how full rows are")
    parser.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    if not arguments.no_packings:
        _print_packings(arguments.length)
    with tempfile.TemporaryDirectory() as folder:
        urls = _write(Path(folder), arguments.documents, arguments.length)
        with serving(urls, "--log-level=error", "--max-stream-s=0") as server:
            meter = _Meter(server.address, server.process.pid, arguments.length)
            worst = max(
                _measure(meter, batch, arguments.rounds, arguments.seconds)
                for batch in arguments.batch
            )
            _measure_buckets(meter, arguments.rounds, arguments.seconds)
            if arguments.peers:
                _measure_loops(Path(folder), server, arguments)
    return int(worst > _BOUND)


class _Meter:
    """Measures streams of one server."""

    def __init__(self, address: str, pid: int, length: int) -> None:
        self._stub = pb_grpc.ShardServiceStub(grpc.insecure_channel(address))
        self._clock = (~pid << 3) | 2
        self.length = length

    def cost(
        self, dataset: str, batch: int, columns: list[str], seconds: float, *, buckets: int = 0
    ) -> float:
        """Return the processor time of a million tokens, in milliseconds."""
        request = asking(
            pb.ReadBatchesRequest,
            dataset=dataset,
            global_batch_size=batch,
            world_size=1,
            columns=columns,
            order=pb.OrderSpec(seed=1),
            epoch_start=pb.EpochStart(),
            max_chunk_bytes=3 << 20,
            buckets=buckets,
        )
        call: Any = self._stub.ReadBatches(request, timeout=300)
        batches = (message for message in call if message.HasField("batch"))
        # Whole batches: of large ones the first message of each has the head.
        for _ in range(20):
            next(batches)
        began_s, began, tokens = self._now(), time.monotonic(), 0
        for count in itertools.count(1):
            header = next(batches).batch
            # Of rows their tokens come first, and of documents the offsets.
            tokens += header.buffer_bytes[int(dataset == "documents")] // 4
            if count % 8 == 0 and time.monotonic() - began >= seconds:
                break
        spent_s = self._now() - began_s
        call.cancel()
        return spent_s * 1e3 / (tokens / 1e6)

    def _now(self) -> float:
        return time.clock_gettime(self._clock)


def _measure(meter: _Meter, batch: int, rounds: int, seconds: float) -> float:
    length = meter.length
    wanted = {
        "fixed rows": ("fixed", ["tokens"]),
        "packed: tokens, boundaries": (
            f"documents:{length}",
            ["tokens", "tokens.boundaries"],
        ),
        "packed: all columns": (f"documents:{length}", []),
    }
    found: dict[str, list[float]] = {name: [] for name in wanted}
    for dataset, columns in wanted.values():
        meter.cost(dataset, batch, columns, seconds)
    for _ in range(rounds):
        for name, (dataset, columns) in wanted.items():
            found[name].append(meter.cost(dataset, batch, columns, seconds))
    medians = {name: statistics.median(times) for name, times in found.items()}
    fixed = medians["fixed rows"]
    for name, median in medians.items():
        sys.stdout.write(
            f"{batch:4d} rows  {name:28s} {median:7.3f} ms a million tokens"
            f"  {median / fixed:5.2f}\n"
        )
    return medians["packed: tokens, boundaries"] / fixed


def _measure_buckets(meter: _Meter, rounds: int, seconds: float) -> None:
    found: dict[int, list[float]] = {0: [], _BUCKETS: []}
    for number in range(rounds + 1):
        for buckets in found:
            cost = meter.cost("documents", _DOCUMENTS, ["tokens"], seconds, buckets=buckets)
            found[buckets] += [cost] * bool(number)
    plain = statistics.median(found[0])
    for buckets, times in found.items():
        name = f"buckets={buckets}" if buckets else "any lengths"
        median = statistics.median(times)
        sys.stdout.write(
            f"{_DOCUMENTS:4d} documents  {name:23s} {median:7.3f} ms a million tokens"
            f"  {median / plain:5.2f}\n"
        )


class _Reader(Protocol):
    """Reads for some seconds; returns what `packing_child` prints."""

    def __call__(self, seconds: float) -> dict[str, float]: ...


def _measure_loops(folder: Path, server: Serving, arguments: argparse.Namespace) -> None:
    rows, length = max(arguments.batch), arguments.length
    readers: dict[str, _Reader] = {
        "headrace, fixed rows": _Ours(server, "fixed", ["tokens"], rows),
        "headrace, packed rows": _Ours(
            server,
            f"documents:{length}",
            ["tokens", "tokens.boundaries"],
            rows,
            token_count=int(np.load(folder / "lengths.npy").sum()),
        ),
    }
    children = []
    for name, module in (("LitData, TokensLoader", "lit"), ("MosaicML, packing", "mosaic")):
        for workers in (0, 2):
            place = folder / f"{module}{workers}"
            place.mkdir()
            for file in ("tokens.npy", "lengths.npy"):
                (place / file).symlink_to(folder / file)
            child = _Child(module, place, (length, rows, workers))
            children.append(child)
            readers[f"{name}, {workers} workers"] = child
    found: dict[str, list[dict[str, float]]] = {name: [] for name in readers}
    for number in range(arguments.rounds + 1):
        for name, read in readers.items():
            answer = read(arguments.seconds)
            found[name] += [answer] * bool(number)
    for child in children:
        child.close()
    for name, answers in found.items():
        rate = statistics.median(each["real"] / each["seconds"] / 1e6 for each in answers)
        cost = statistics.median(each["processor_s"] * 1e9 / each["real"] for each in answers)
        real = sum(each["real"] for each in answers) / sum(each["cells"] for each in answers)
        sys.stdout.write(
            f"{rows:4d} rows  {name:34s} {rate:7.1f} million tokens/s  {cost:6.2f} ms of processor "
            f"a million  {real:7.2%} real\n"
        )


class _Ours:
    """A loop over the server, over TCP; `token_count` is of all rows, where some have padding."""

    def __init__(
        self,
        server: Serving,
        dataset: str,
        columns: list[str],
        rows: int,
        *,
        token_count: int = 0,
    ) -> None:
        self._server = server
        remote = RemoteDataset(
            server.address, dataset, batch_size=rows, seed=1, columns=columns, epochs=None
        )
        self._batches = (batch for _ in itertools.count() for batch in remote)
        for _ in range(8):
            tokens: Any = next(self._batches)["tokens"]
        stub = pb_grpc.ShardServiceStub(grpc.insecure_channel(server.address))
        row_count = stub.GetDataset(pb.GetDatasetRequest(name=dataset)).dataset.sample_count
        self._real_share = token_count / (row_count * tokens.shape[1]) if token_count else 1.0

    def __call__(self, seconds: float) -> dict[str, float]:
        began, used, cells = time.monotonic(), self._used(), 0
        while (now := time.monotonic()) - began < seconds:
            tokens: Any = next(self._batches)["tokens"]
            cells += tokens.numel()
        return {
            "seconds": now - began,
            "real": cells * self._real_share,
            "cells": cells,
            "processor_s": self._used() - used,
        }

    def _used(self) -> float:
        mine = resource.getrusage(resource.RUSAGE_SELF)
        return mine.ru_utime + mine.ru_stime + self._server.processor_s()


class _Child:
    """Another library, in a process of its environment."""

    def __init__(self, library: str, folder: Path, numbers: tuple[int, ...]) -> None:
        script = str(Path(__file__).with_name("packing_child.py"))
        words = [library_of(library).python(), script, library, str(folder), *map(str, numbers)]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        self._answer()

    def __call__(self, seconds: float) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._answer())
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended with {self._process.wait(20)}")
        return line


def _write(folder: Path, documents: int, length: int) -> dict[str, str]:
    random = np.random.default_rng(1)
    lengths = _lognormal(random, documents, 1.0)
    offsets = np.zeros(documents + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    tokens = random.integers(0, 50_000, offsets[-1], dtype=np.int32)
    np.save(folder / "tokens.npy", tokens)
    np.save(folder / "lengths.npy", lengths)
    urls = {"documents": str(folder / "documents"), "fixed": str(folder / "fixed")}
    starts: pa.Int32Array = pa.array(offsets, pa.int32())
    table = pa.table({"tokens": pa.ListArray.from_arrays(starts, pa.array(tokens))})
    _write_table(urls["documents"], table)
    rows = tokens.size // length
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(tokens[: rows * length]), length)
    _write_table(urls["fixed"], pa.table({"tokens": fixed}))
    index_packing(urls["documents"], RowOptions(length), count_rows=row_counter())
    return urls


def _write_table(url: str, table: pa.Table) -> None:
    shard = table.num_rows // _SHARDS
    counts = [shard] * (_SHARDS - 1) + [table.num_rows - shard * (_SHARDS - 1)]
    write_dataset(url, table, shard_samples=counts, block_bytes=1 << 20)


def _print_packings(length: int) -> None:
    random = np.random.default_rng(2)
    for count in (1 << 14, 1 << 12, 1 << 10, 100):
        for name, lengths, cut in _corpora(random, count):
            packing = Packing(length, cut)
            began = time.monotonic()
            rows = group_row_count(lengths, packing, fit=fit)
            counted_s = time.monotonic() - began
            began = time.monotonic()
            first, second = (
                pack_group(
                    lengths,
                    packing,
                    first_id=0,
                    key=packing_key(1, epoch),
                    row_count=rows,
                    fit=fit,
                )
                for epoch in (0, 1)
            )
            packed_s = (time.monotonic() - began) / 2
            pairs = _pairs(first)
            again = len(pairs & _pairs(second)) / max(1, len(pairs))
            sys.stdout.write(
                f"{count:6d} {name:24s} {lengths.sum() / (rows * length):7.2%} real tokens  "
                f"{again:6.2%} of pairs again  {packed_s * 1e3:5.2f} ms to pack  "
                f"{counted_s * 1e3:5.2f} ms to count\n"
            )


def _corpora(
    random: np.random.Generator, count: int
) -> Iterator[tuple[str, NDArray[np.int64], int]]:
    yield "lognormal, sigma 1.0", _lognormal(random, count, 1.0), 0
    yield "lognormal, sigma 1.3", _lognormal(random, count, 1.3), 0
    wide = np.where(random.random(count) < 0.7, 1, 20) * _lognormal(random, count, 0.5) // 4
    yield "wide bimodal", np.maximum(wide, 1), 0
    tight = np.where(random.random(count) < 0.7, 120, 5000)
    yield "tight bimodal", tight, 0
    yield "tight bimodal, cut=1024", tight, 1024


def _lognormal(random: np.random.Generator, count: int, sigma: float) -> NDArray[np.int64]:
    drawn = np.exp(random.normal(np.log(600), sigma, count))
    return np.maximum(drawn.astype(np.int64), 1)


def _pairs(group: PackedGroup) -> set[tuple[int, int]]:
    found = set()
    for start, end in itertools.pairwise(group.starts.tolist()):
        documents = sorted(set(group.pieces[start:end, 0].tolist()))
        found |= set(itertools.combinations(documents, 2))
    return found


if __name__ == "__main__":
    sys.exit(main())
