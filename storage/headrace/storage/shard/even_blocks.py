"""Which shards have even blocks: all but the last hold the same number of samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def block_samples_of(
    sample_counts: NDArray[np.int64], block_counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how many samples each block of a shard has but its last, ``(shards,) int64``.

    A shard of one block has all its samples in it. Zero stands for blocks that differ, or a last
    one that is larger than the others.

    Args:
        sample_counts: ``(blocks,)``, samples of the blocks of all shards, in order.
        block_counts: ``(shards,)``, blocks of each shard; zero for those without any.
    """
    result = np.zeros(len(block_counts), np.int64)
    filled = block_counts > 0
    blocks = block_counts[filled]
    if not len(blocks):
        return result
    stops = np.cumsum(blocks)
    firsts = np.asarray(sample_counts, np.int64)[stops - blocks]
    is_even = sample_counts == np.repeat(firsts, blocks)
    is_even[stops - 1] = sample_counts[stops - 1] <= firsts
    result[filled] = np.where(np.logical_and.reduceat(is_even, stops - blocks), firsts, 0)
    return result


def block_samples_problem(
    sample_counts: NDArray[np.int64],
    block_counts: NDArray[np.int64],
    block_samples: NDArray[np.int64],
) -> str | None:
    """Say which shard's samples cannot lie in its blocks as stated, or nothing.

    Args:
        sample_counts: ``(shards,)``, each in [1, 2**62).
        block_counts: ``(shards,)``, each >= 1.
        block_samples: ``(shards,)``, as `block_samples_of` returns them; here any number.
    """
    blocks = -(-sample_counts // np.maximum(block_samples, 1))
    is_cut = (blocks == block_counts) & ((block_counts > 1) | (block_samples == sample_counts))
    is_cut |= (block_samples == 0) & (block_counts > 1)
    bad = np.flatnonzero(~is_cut | (block_samples < 0) | (block_samples > _MAX_BLOCK_SAMPLES))
    if not len(bad):
        return None
    shard = int(bad[0])
    stated = f"block_samples of shard {shard} is {block_samples[shard]}"
    cut = f"{sample_counts[shard]} samples into blocks, {block_counts[shard]} of them"
    return f"{stated}, which does not divide {cut}"


_MAX_BLOCK_SAMPLES = 2**31 - 1  # rows of the block table hold 32-bit counts
