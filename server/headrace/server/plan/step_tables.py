"""Compute the tables of one step of an order, with which compiled loops find its samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.order import NETWORK_ROUNDS, Step, network_sides
from headrace.server.kernels.loader import LOOPS
from headrace.server.plan.compiled import search
from headrace.storage import OpenDataset

# Of 32 bytes each. A step touches some thousands of blocks by default.
_MAX_PIECES = 1 << 18

# The kernel scans from a bucket's first piece to the one that holds a sample. Few buckets contain a
# border, because there are many (a mispredicted branch costs more than anything else here).
_BUCKETS = 1 << 13
_BUCKETS_A_PIECE = 4

_NO_TABLES = np.empty((0, 0), np.uint16)
_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class StepTables:
    """Arguments of the kernel `find_dealt`, which describes them.

    Attributes:
        whole: The permutation of a small step.
        tables: The permutation of another step.
        width: The width of its network.
        entries: See the kernel, as for the next five.
        key: See `entries`.
        second_key: See `entries`.
        pieces: See `entries`.
        buckets: See `entries`.
        shift: See `entries`.
        blocks: The blocks that `pieces` refers to.
    """

    whole: NDArray[np.int64]
    tables: NDArray[np.uint16]
    width: int
    entries: NDArray[np.int64]
    key: np.uint64
    second_key: np.uint64
    pieces: NDArray[np.int64]
    buckets: NDArray[np.int32]
    shift: int
    blocks: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Return the size of the arrays in bytes."""
        arrays = (self.whole, self.tables, self.pieces, self.buckets, self.blocks)
        return sum(array.nbytes for array in arrays)


def step_tables(step: Step, dataset: OpenDataset) -> StepTables | None:
    """Return the tables of a step; None if too many blocks end in its runs."""
    found = _pieces(step, dataset)
    if found is None:
        return None
    pieces, blocks = found
    buckets, shift = _buckets(pieces[:, 0])
    whole, tables, width = _permutation(step)
    entries = step.entries.copy()
    entries[:-1, 1] -= step.low
    return StepTables(
        whole=whole,
        tables=tables,
        width=width,
        entries=entries,
        key=np.uint64((step.deal_key + step.low) % (1 << 64)),
        second_key=np.uint64(step.deal_second_key),
        pieces=pieces,
        buckets=buckets,
        shift=shift,
        blocks=blocks,
    )


def _permutation(step: Step) -> tuple[NDArray[np.int64], NDArray[np.uint16], int]:
    """Return the permutation of a step, as the kernel `find_dealt` takes it."""
    keys = np.uint64(step.key), np.uint64(step.second_key)
    if step.is_small:
        words = np.empty(step.count, np.uint64)
        number_bits = (step.count - 1).bit_length()
        LOOPS.sorting_words(*keys, number_bits, words)
        words.sort()
        words &= np.uint64((1 << number_bits) - 1)
        return words.view(np.int64), _NO_TABLES, 1
    width, height = network_sides(step.count)
    tables = np.zeros((NETWORK_ROUNDS, max(width, height)), np.uint16)
    LOOPS.network_tables(*keys, width, height, tables)
    return _NO_IDS, tables, width


def _pieces(step: Step, dataset: OpenDataset) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Cut the runs of a step where blocks end; None if that makes too many.

    Returns:
        The pieces and the distinct blocks, as the kernel `find_dealt` takes them.
    """
    ends = np.concatenate([step.first_ids, step.first_ids + step.lengths - 1])
    located, _ = dataset.locate(ends, search=search)
    first_blocks, last_blocks = located.reshape(2, -1)
    counts = last_blocks - first_blocks + 1
    count = int(counts.sum())
    if count > _MAX_PIECES:
        return None
    runs = np.arange(counts.size).repeat(counts)
    first_pieces, run_starts = counts.cumsum() - counts, step.lengths.cumsum() - step.lengths
    blocks = first_blocks[runs] + np.arange(count) - first_pieces[runs]
    block_ids = dataset.block_first_samples(blocks)
    first_ids = np.maximum(block_ids, step.first_ids[runs])
    distinct, own = np.unique(blocks, return_inverse=True)
    pieces = np.zeros((count + 1, 4), np.int64)
    pieces[:-1, 0] = run_starts[runs] + first_ids - step.first_ids[runs]
    pieces[:-1, 1] = first_ids
    pieces[:-1, 2] = first_ids - block_ids
    pieces[:-1, 3] = own
    pieces[-1, 0] = step.high - step.low
    return pieces, distinct


def _buckets(starts: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """Return the piece at the start of each bucket of offsets, and the size of a bucket."""
    least = max(_BUCKETS, _BUCKETS_A_PIECE * starts.size)
    shift = max(0, int(starts[-1]).bit_length() - least.bit_length() + 1)
    edges = np.arange(0, int(starts[-1]), 1 << shift)
    return (np.searchsorted(starts, edges, side="right") - 1).astype(np.int32), shift
