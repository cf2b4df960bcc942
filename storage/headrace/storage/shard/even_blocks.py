"""Even blocks: all blocks of a shard except for the last hold the same number of samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def block_samples_of(
    sample_counts: NDArray[np.int64], block_counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the samples of every block of a shard except for its last: ``(shards,) int64``.

    For a shard of one block, these are all its samples. Zero means that blocks differ, or that the
    last one is larger than the others.

    Args:
        sample_counts: ``(blocks,)``, samples of the blocks of all shards, in order.
        block_counts: ``(shards,)``, number of blocks of each shard; may be zero.
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
    """Return which shard's samples do not fit its blocks as stated, or None.

    Args:
        sample_counts: ``(shards,)``, each in [1, 2**62).
        block_counts: ``(shards,)``, each >= 1.
        block_samples: ``(shards,)``, as from `block_samples_of`, but not yet trusted.
    """
    blocks = -(-sample_counts // np.maximum(block_samples, 1))
    is_cut = (blocks == block_counts) & ((block_counts > 1) | (block_samples == sample_counts))
    is_cut |= (block_samples == 0) & (block_counts > 1)
    bad = np.flatnonzero(~is_cut | (block_samples < 0) | (block_samples > _MAX_BLOCK_SAMPLES))
    if not len(bad):
        return None
    shard = int(bad[0])
    return (
        f"block_samples of shard {shard} is {block_samples[shard]}, which does not divide "
        f"{sample_counts[shard]} samples into {block_counts[shard]} blocks"
    )


_MAX_BLOCK_SAMPLES = 2**31 - 1  # rows of the block table hold 32-bit counts
