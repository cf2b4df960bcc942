"""How long ranks wait for the slowest of them: samples dealt in order, and so that costs are even.

    PYTHONPATH=tests:examples python tests/benchmarks/bench_waits.py

Eight ranks read an epoch from a server. A rank's step takes as long as its batch costs, and the
step of all of them ends with the slowest, as where gradients are averaged; nothing sleeps, so the
numbers are the same on any machine. Printed is the share of the ranks' time that they wait, and
how many times as long the epoch takes as one whose steps are all even.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.cli.stored.row_counter import row_counter
from headrace.client import Batch, Deal, RemoteDataset, Sharding
from headrace.storage import RowOptions, index_packing
from support.datasets import write_dataset
from support.running import server_of

_RANKS = 8
_SHARDS = 4


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=16_384)
    parser.add_argument("--length", type=int, default=8192)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, arguments.documents, arguments.length)
        with server_of({"d": folder}) as server:
            for title, dataset, batch_size, deal, cost in _cases(arguments.length):
                for way, own in (("in order", None), ("balanced", deal)):
                    costs = _costs(server.address, dataset, batch_size, own, cost)
                    costs = _accumulated(costs, deal.accumulate)
                    slowest = costs.max(axis=0)
                    wait = 1 - costs.sum() / (slowest.sum() * _RANKS)
                    sys.stdout.write(
                        f"{title:36s} {way:9s} {wait:6.1%} of the time waited, "
                        f"{slowest.sum() / costs.mean(axis=0).sum():5.2f} times an even epoch\n"
                    )
    return 0


def _cases(
    length: int,
) -> list[tuple[str, str, int, Deal, Callable[[list[NDArray[np.int64]]], float]]]:
    def linear(rows: list[NDArray[np.int64]]) -> float:
        return float(sum(each.sum() for each in rows))

    def square(rows: list[NDArray[np.int64]]) -> float:
        return float(sum((each.astype(np.float64) ** 2).sum() for each in rows))

    rows = f"d:{length}"
    return [
        ("16 documents, length", "d", 16, Deal(length_cost=1), linear),
        ("16 documents, square", "d", 16, Deal(square_cost=1), square),
        ("1 packed row, square", rows, 1, Deal(square_cost=1), square),
        ("4 packed rows, square", rows, 4, Deal(square_cost=1), square),
        ("1 packed row, 8 accumulated, square", rows, 1, Deal(square_cost=1, accumulate=8), square),
    ]


def _accumulated(costs: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the costs of the steps of the optimizer, for which ranks wait."""
    whole = costs[:, : costs.shape[1] // count * count]
    summed: NDArray[np.float64] = whole.reshape(_RANKS, -1, count).sum(axis=2)
    return summed


def _costs(
    address: str,
    dataset: str,
    batch_size: int,
    deal: Deal | None,
    cost: Callable[[list[NDArray[np.int64]]], float],
) -> NDArray[np.float64]:
    """Read an epoch as each rank; return the cost of each step, ``(ranks, steps) float64``."""
    column = "tokens.boundaries" if ":" in dataset else "tokens"
    return np.array(
        [
            [
                cost(_lengths(batch, column))
                for batch in RemoteDataset(
                    address,
                    dataset,
                    batch_size=batch_size,
                    columns=[column],
                    rank=rank,
                    world_size=_RANKS,
                    epochs=1,
                    end="drop_last",
                    sharding=Sharding(deal=deal),
                )
            ]
            for rank in range(_RANKS)
        ]
    )


def _lengths(batch: Batch, column: str) -> list[NDArray[np.int64]]:
    """Return the lengths of the documents of each row."""
    offsets = np.asarray(batch.ragged[column].offsets)
    if column == "tokens":
        return [np.diff(offsets)]
    # What fills a row up is a piece too, and attention computes on it.
    values = np.asarray(batch.ragged[column].values)
    return [np.diff(values[a:b]) for a, b in itertools.pairwise(offsets)]


def _write(folder: str, documents: int, length: int) -> None:
    random = np.random.default_rng(1)
    drawn = np.exp(random.normal(np.log(600), 1.0, documents))
    lengths = np.clip(drawn.astype(np.int64), 1, length)
    offsets = np.zeros(documents + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    tokens = pa.array(np.ones(offsets[-1], np.int8), pa.int8())
    starts: pa.Int32Array = pa.array(offsets, pa.int32())
    table = pa.table({"tokens": pa.ListArray.from_arrays(starts, tokens)})
    write_dataset(folder, table, shard_samples=[documents // _SHARDS] * _SHARDS)
    index_packing(folder, RowOptions(length), count_rows=row_counter())


if __name__ == "__main__":
    sys.exit(main())
