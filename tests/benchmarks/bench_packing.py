"""What packed rows cost a server, beside rows of one length, and how full they are.

    PYTHONPATH=tests:examples python tests/benchmarks/bench_packing.py

The same documents are stored twice: as lists of tokens, packed when they are served, and cut into
rows of one length before, as a dataset of arrays. Servers in processes of their own stream both;
printed is the processor time a million tokens, the median of interleaved rounds, and the ratio,
which is to be at most 1.3. Then follow, without a server, the share of real tokens, how many pairs
of documents that shared a row share one again in the next epoch, and the time to pack a group.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.bench.children import serving
from headrace.cli.stored.row_counter import row_counter
from headrace.order.packing import PackedGroup, Packing, group_row_count, pack_group, packing_key
from headrace.server.plan.find_samples import fit
from headrace.storage import RowOptions, index_packing
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from support.datasets import write_dataset

_BOUND = 1.3
_SHARDS = 4


def main() -> int:
    """Print both tables; return 1 if packed rows cost more than they may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--batch", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    _print_packings(arguments.length)
    with tempfile.TemporaryDirectory() as folder:
        urls = _write(Path(folder), arguments.documents, arguments.length)
        with serving(urls, "--log-level=error", "--max-stream-s=0") as server:
            meter = _Meter(server.address, server.process.pid, arguments.length)
            worst = max(
                _measure(meter, batch, arguments.rounds, arguments.seconds)
                for batch in arguments.batch
            )
    return int(worst > _BOUND)


class _Meter:
    """Measures streams of one server."""

    def __init__(self, address: str, pid: int, length: int) -> None:
        self._stub = pb_grpc.ShardServiceStub(grpc.insecure_channel(address))
        self._clock = (~pid << 3) | 2
        self.length = length

    def cost(self, dataset: str, batch: int, columns: list[str], seconds: float) -> float:
        """Return the processor time of a million tokens, in milliseconds."""
        request = pb.ReadBatchesRequest(
            dataset=dataset,
            global_batch_size=batch,
            world_size=1,
            columns=columns,
            order=pb.OrderSpec(seed=1),
            epoch_start=pb.EpochStart(),
            max_chunk_bytes=3 << 20,
        )
        call: Any = self._stub.ReadBatches(request, timeout=300)
        batches = (message for message in call if message.HasField("batch"))
        # Whole batches: of large ones the first message of each has the head.
        for _ in range(20):
            next(batches)
        began_s, began = self._now(), time.monotonic()
        for count in itertools.count(1):
            next(batches)
            if count % 8 == 0 and time.monotonic() - began >= seconds:
                break
        spent_s = self._now() - began_s
        call.cancel()
        return spent_s * 1e3 / (count * batch * self.length / 1e6)

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


def _write(folder: Path, documents: int, length: int) -> dict[str, str]:
    random = np.random.default_rng(1)
    lengths = _lognormal(random, documents, 1.0)
    offsets = np.zeros(documents + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    tokens = random.integers(0, 50_000, offsets[-1], dtype=np.int32)
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
    for begin, end in itertools.pairwise(group.starts.tolist()):
        documents = sorted(set(group.pieces[begin:end, 0].tolist()))
        found |= set(itertools.combinations(documents, 2))
    return found


if __name__ == "__main__":
    sys.exit(main())
