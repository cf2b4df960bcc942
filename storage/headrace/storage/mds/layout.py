"""Cut shards into blocks, using only the index, without reading anything.

A shard that must be fetched as a whole is one block. Any other has ``ceil(raw_bytes /
BLOCK_BYTES)`` blocks with equal numbers of samples; the last may have fewer. An empty shard has no
blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.storage.source.ordinals import checked_ordinals, read_only, starts_of
from headrace.storage.source.prefix_search import Search, Starts, search_starts

BLOCK_BYTES = (
    1 << 20
)  # as for blocks of our own shards: a range read of this size is worth its round trip


class MdsLayout:
    """The blocks of all shards.

    Args:
        sample_counts: ``(shards,) int64``.
        raw_bytes: ``(shards,) int64``.
        whole: ``(shards,) bool``; which shards are a single block.

    Attributes:
        sample_count: Samples of all shards.
        block_count: Blocks of all shards.
        block_samples: ``(shards,) int64``, samples of each block of a shard except its last;
            read-only.
    """

    def __init__(
        self,
        sample_counts: NDArray[np.int64],
        raw_bytes: NDArray[np.int64],
        *,
        whole: NDArray[np.bool_],
    ) -> None:
        wanted = np.where(whole, 1, np.maximum(1, -(-raw_bytes // BLOCK_BYTES)))
        self._per_block = np.maximum(1, -(-sample_counts // wanted))
        self.block_samples = read_only(self._per_block)
        self._first_block = starts_of(-(-sample_counts // self._per_block))
        self._first_sample = starts_of(sample_counts)
        self._shards = Starts(self._first_sample)
        self.sample_count = int(self._first_sample[-1])
        self.block_count = int(self._first_block[-1])

    def locate(
        self, sample_ids: NDArray[np.int64], search: Search = search_starts
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return block ordinals and offsets in the blocks, ``(n,) int64`` each.

        Raises:
            BadArgumentError: An id is outside ``[0, sample_count)``.
        """
        ids = checked_ordinals(sample_ids, self.sample_count, "sample id")
        shards, places = search(self._shards, ids)
        blocks, offsets = np.divmod(places, self._per_block[shards])
        return self._first_block[shards] + blocks, offsets

    def shards_of(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shard of each block, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        ordinals = checked_ordinals(blocks, self.block_count, "block")
        return np.searchsorted(self._first_block, ordinals, side="right") - 1

    def sample_ranges(
        self, blocks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard of each block and its samples ``[start, stop)`` there.

        Returns:
            Shards, starts and stops, ``(n,) int64`` each; the latter count from the shard's first
            sample.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        shards = self.shards_of(blocks)
        per_block = self._per_block[shards]
        starts = (np.asarray(blocks, np.int64) - self._first_block[shards]) * per_block
        counts = self._first_sample[shards + 1] - self._first_sample[shards]
        return shards, starts, np.minimum(starts + per_block, counts)

    def first_samples(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the id of the first sample of each block, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        shards, starts, _ = self.sample_ranges(blocks)
        firsts: NDArray[np.int64] = self._first_sample[shards] + starts
        return firsts

    def first_sample(self, shard: int) -> int:
        """Return the id of a shard's first sample."""
        return int(self._first_sample[shard])
