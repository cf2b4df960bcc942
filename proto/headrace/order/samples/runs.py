"""Runs: stretches of whole blocks that are read together, and the pieces made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order.basics.segments import by_value, spread, starts_of
from headrace.order.samples.shard_table import ShardTable
from headrace.order.samples.spec import OrderSpec

_Array = NDArray[np.int64]

# Most runs of a shard: the times of the spread have room for no more.
_SHARD_RUNS: Final = 1 << 20
# Most runs of a piece. For sorted ImageNet and batches of 4,096, pieces of 8, 16 and 32 runs have a
# variance of 1.94, 1.18 and 1.78; docs/decisions/order-version-2.md.
MOST_RUNS: Final = 16
# With more runs, whole shards are pieces, which bounds the memory for pieces.
_FINE_RUNS: Final = 1 << 20
# Shards that are processed together, which bounds memory.
_TOGETHER: Final = 1 << 16


Locate: TypeAlias = Callable[[_Array], tuple[_Array, _Array]]
"""Returns the block of each sample and its place in that block."""


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The runs of a dataset in storage order; the same in every epoch.

    Attributes:
        first_ids: (shards,) int64, id of the first sample of each shard; empty shards are left out.
        sample_counts: (shards,) int64, >= 1.
        run_samples: (shards,) int64, samples of each run of a shard, except for its last.
        block_samples: (shards,) int64, samples of each block of a shard; 0 if blocks differ.
        first_runs: (shards + 1,) int64, number of each shard's first run.
        sample_count: Samples of the dataset.
    """

    first_ids: _Array
    sample_counts: _Array
    run_samples: _Array
    block_samples: _Array
    first_runs: _Array
    sample_count: int

    def missing(self, start: int, stop: int) -> _Array:
        """Return how many samples fewer than the others the last run of each shard has."""
        counts = np.diff(self.first_runs[start : stop + 1])
        result: _Array = counts * self.run_samples[start:stop] - self.sample_counts[start:stop]
        return result

    def around(self, sample_ids: _Array) -> tuple[_Array, _Array]:
        """Return the first sample id of each sample's run, and the one after its last."""
        shards = np.searchsorted(self.first_ids, sample_ids, side="right") - 1
        start, size = self.first_ids[shards], self.run_samples[shards]
        first = start + (sample_ids - start) // size * size
        return first, np.minimum(first + size, start + self.sample_counts[shards])

    def half_ends(self, sample_ids: _Array) -> _Array:
        """Return the sample id after the first half of each sample's run.

        It has half the run's blocks, and one more if their number is odd; or all of the run if
        blocks differ.
        """
        first, stop = self.around(sample_ids)
        blocks = self.block_samples[np.searchsorted(self.first_ids, sample_ids, side="right") - 1]
        unit = np.where(blocks > 0, blocks, stop - first)
        result: _Array = first + -(-(stop - first) // (2 * unit)) * unit
        return np.minimum(result, stop)

    @property
    def count(self) -> int:
        """Number of runs of the dataset."""
        return int(self.first_runs[-1])

    def shards_of(self, runs: _Array) -> _Array:
        """Return the shard of each run."""
        return np.searchsorted(self.first_runs, runs, side="right") - 1

    def start_and_size(self, runs: _Array, shards: _Array) -> tuple[_Array, _Array]:
        """Return each run's first sample id and its number of samples."""
        before = (runs - self.first_runs[shards]) * self.run_samples[shards]
        sizes = np.minimum(self.run_samples[shards], self.sample_counts[shards] - before)
        return self.first_ids[shards] + before, sizes


@dataclass(frozen=True, slots=True, eq=False)
class RunPieces:
    """Pieces: neighbouring runs of a shard that are spread over the epoch together.

    Attributes:
        first_runs: (pieces + 1,) int64, the first run of each piece.
        shards: (pieces,) int32, the shard of each piece.
        ordinals: (pieces,) int32, number of each piece among the pieces of equal size.
        groups: The pieces of each size in runs, in storage order, by size, rising.
    """

    first_runs: _Array
    shards: NDArray[np.int32]
    ordinals: NDArray[np.int32]
    groups: dict[int, NDArray[np.int32]]


def make_runs(spec: OrderSpec, table: ShardTable) -> Runs:
    """Cut the shards of a dataset into runs."""
    return make_all_runs(spec, [table]).of(0)


@dataclass(frozen=True, slots=True, eq=False)
class AllRuns:
    """The runs of several datasets.

    Attributes:
        starts: (datasets + 1,) int64, the first shard of each dataset, counting shards that have
            samples.
        sample_counts: (shards,) int64, as in `Runs`.
        run_samples: (shards,) int64, as in `Runs`.
        block_samples: (shards,) int64, as in `Runs`.
        counts: (shards,) int64, number of runs of each shard.
    """

    starts: _Array
    sample_counts: _Array
    run_samples: _Array
    block_samples: _Array
    counts: _Array

    def of(self, dataset: int) -> Runs:
        """Return the runs of one dataset."""
        own = slice(*self.starts[dataset : dataset + 2].tolist())
        first_ids = starts_of(self.sample_counts[own])
        return Runs(
            first_ids=first_ids[:-1],
            sample_counts=self.sample_counts[own],
            run_samples=self.run_samples[own],
            block_samples=self.block_samples[own],
            first_runs=starts_of(self.counts[own]),
            sample_count=int(first_ids[-1]),
        )


def make_all_runs(spec: OrderSpec, tables: Sequence[ShardTable]) -> AllRuns:
    """Cut the shards of several datasets into runs."""
    alone = len(tables) == 1
    samples = tables[0].sample_counts if alone else _joined([t.sample_counts for t in tables])
    raw = tables[0].raw_bytes if alone else _joined([t.raw_bytes for t in tables])
    blocks = tables[0].block_samples
    if not alone and any(table.block_samples is not None for table in tables):
        every = [
            np.zeros_like(t.sample_counts) if t.block_samples is None else t.block_samples
            for t in tables
        ]
        blocks = _joined(every)
    starts = starts_of(np.array([len(table.sample_counts) for table in tables], np.int64))
    stored = samples > 0
    if not stored.all():
        starts = starts_of(stored.astype(np.int64))[starts]
        samples, raw = samples[stored], raw[stored]
        blocks = None if blocks is None else blocks[stored]
    blocks = np.zeros_like(samples) if blocks is None else np.minimum(blocks, samples)
    size = np.empty_like(samples)
    for start in range(0, len(samples), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        size[some] = _run_samples(spec.run_bytes, samples[some], raw[some], blocks[some])
    return AllRuns(starts, samples, size, blocks, -(-samples // size))


def _joined(arrays: list[_Array]) -> _Array:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def _run_samples(run_bytes: int, samples: _Array, raw: _Array, blocks: _Array) -> _Array:
    sample_bytes = np.maximum(-(-raw // samples), 1)
    block_bytes = np.maximum(sample_bytes * blocks, 1)
    whole = np.maximum((run_bytes + block_bytes // 2) // block_bytes, 1) * blocks
    size = np.where(blocks > 0, whole, np.maximum(run_bytes // sample_bytes, 1))
    unit = np.maximum(blocks, 1)
    least = -(-samples // (_SHARD_RUNS * unit)) * unit
    result: _Array = np.minimum(np.maximum(size, least), samples)
    return result


def make_pieces(runs: Runs) -> RunPieces:
    """Cut the runs of each shard into pieces of 16, 8, 4, 2 and 1 runs, the largest first."""
    counts = np.diff(runs.first_runs)
    if runs.count > _FINE_RUNS:
        shards, sizes = np.arange(len(counts), dtype=np.int32), counts
    else:
        shards, sizes = binary_pieces(counts)
    ordinals = np.zeros(len(sizes), np.int32)
    groups = {}
    for size, places in by_value(sizes):
        groups[size] = members = places.astype(np.int32)
        ordinals[members] = np.arange(len(members), dtype=np.int32)
    first_runs = runs.first_runs if len(sizes) == len(counts) else starts_of(sizes)
    return RunPieces(first_runs, shards, ordinals, groups)


def binary_pieces(counts: _Array) -> tuple[NDArray[np.int32], _Array]:
    """Return the shard and the size in runs of each piece, in storage order.

    Args:
        counts: ``(shards,) int64``: runs of each shard.
    """
    full = counts // MOST_RUNS
    bits = np.arange(MOST_RUNS.bit_length() - 2, -1, -1)
    rest = (counts[:, None] >> bits) & 1
    pieces = full + rest.sum(axis=1)
    owners, places = spread(pieces)
    sizes = np.full(len(owners), MOST_RUNS)
    small = places >= full[owners]
    _, columns = np.nonzero(rest)
    sizes[small] = 1 << bits[columns]
    return owners.astype(np.int32), sizes


def blocks_between(runs: tuple[_Array, _Array], locate: Locate) -> _Array:
    """Return all blocks of runs, ascending.

    Args:
        runs: The first sample id of each run, and the one after its last; runs may repeat.
        locate: Finds samples.
    """
    firsts, chosen = np.unique(runs[0], return_index=True)
    blocks, _ = locate(np.concatenate([firsts, runs[1][chosen] - 1]))
    first_blocks, last_blocks = blocks.reshape(2, -1)
    counts = last_blocks - first_blocks + 1
    starts = np.cumsum(counts) - counts
    found: _Array = np.unique(np.repeat(first_blocks - starts, counts) + np.arange(counts.sum()))
    return found
