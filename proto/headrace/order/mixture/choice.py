"""Fixed choices: the same part of a dataset in every epoch, in groups of neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order.basics.hash import Stream, derive, derive_each, draw_each
from headrace.order.basics.segments import spread, starts_of
from headrace.order.mixture.schedule import apportion
from headrace.order.samples.shard_table import ShardTable

_SHARD_LIMIT = 1 << 31
_SAMPLE_LIMIT = 1 << 41


class FixedChoice:
    """Which samples each dataset of a mixture uses, if it uses the same ones in every epoch.

    A shard gives c of its n samples in q groups. The groups lie in order, and the n - c other
    samples lie between them: floor((k + 1) (n - c) / q) - floor(k (n - c) / q) of these belong to
    group k, and a draw decides how many of them come before it.

    Args:
        tables: The datasets' shards.
        chosen: How many samples of each dataset are used; None for all.
        granularities: Samples of one group, for each dataset.
        keys: (datasets,) uint64, the datasets' keys.

    Raises:
        BadArgumentError: A dataset or one of its shards is too large to choose from.
    """

    def __init__(
        self,
        tables: Sequence[ShardTable],
        chosen: Sequence[int | None],
        *,
        granularities: Sequence[int],
        keys: NDArray[np.uint64],
    ) -> None:
        self.tables = [
            table if count is None else _chosen_table(table, count)
            for table, count in zip(tables, chosen, strict=True)
        ]
        samples = np.concatenate([table.sample_counts for table in tables])
        self._counts = np.concatenate([table.sample_counts for table in self.tables])
        owners, self._shards = spread(np.array([len(table.sample_counts) for table in tables]))
        self._rests = samples - self._counts
        groups = -(-self._counts // np.array(granularities)[owners])
        # Shards that give all their samples are one group, so that no product exceeds 64 bits.
        self._groups = np.where(self._rests > 0, groups, np.minimum(groups, 1))
        self._starts = starts_of(self._counts)
        sizes = [table.sample_count for table in self.tables]
        self._dataset_starts = starts_of(np.array(sizes))
        full = starts_of(np.array([table.sample_count for table in tables]))
        self._first_ids = starts_of(samples)[:-1] - full[owners]
        self._keys = keys
        self._tables_starts = starts_of(np.array([len(table.sample_counts) for table in tables]))

    def sample_ids(
        self, datasets: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the sample ids of chosen samples.

        Args:
            datasets: (n,) int64, the dataset of each sample.
            numbers: (n,) int64, its number among the chosen samples of its dataset, in storage
                order.

        Returns:
            (n,) int64.
        """
        offsets = self._dataset_starts[datasets] + numbers
        shards = np.searchsorted(self._starts, offsets, side="right") - 1
        places = offsets - self._starts[shards]
        groups = ((places + 1) * self._groups[shards] - 1) // self._counts[shards]
        low = groups * self._rests[shards] // self._groups[shards]
        high = (groups + 1) * self._rests[shards] // self._groups[shards]
        keys = derive_each(self._keys[datasets], Stream.CHOICE, self._shards[shards])
        drawn = draw_each(keys, groups.view(np.uint64)) % (high - low + 1).view(np.uint64)
        sample_ids: NDArray[np.int64] = self._first_ids[shards] + low + places
        sample_ids += drawn.view(np.int64)
        return sample_ids

    def numbers_of(self, dataset: int, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of samples among the chosen ones: the inverse of `sample_ids`.

        Args:
            dataset: The dataset.
            sample_ids: (n,) int64, ids in that dataset.

        Returns:
            (n,) int64; -1 for samples that are not chosen.
        """
        first, stop = self._tables_starts[dataset : dataset + 2].tolist()
        starts = self._first_ids[first:stop]
        # If shards start with the same id, only the last of them has samples.
        shards = first + np.searchsorted(starts, sample_ids, side="right") - 1
        places = sample_ids - self._first_ids[shards]
        counts, rests, groups = self._counts[shards], self._rests[shards], self._groups[shards]
        own = np.maximum(groups, 1)
        group = np.minimum(places * groups // np.maximum(counts + rests, 1), own - 1)
        for _ in range(2):
            # Each group lies in its own stretch, and the guess is off by at most two groups.
            later = np.minimum(group + 1, own - 1)
            group = np.where(later * counts // own + later * rests // own <= places, later, group)
        low, high = group * rests // own, (group + 1) * rests // own
        keys = np.full(len(shards), self._keys[dataset], np.uint64)
        drawn = draw_each(
            derive_each(keys, Stream.CHOICE, self._shards[shards]), group.view(np.uint64)
        )
        numbers = places - low - (drawn % (high - low + 1).view(np.uint64)).view(np.int64)
        chosen = (group * counts // own <= numbers) & (numbers < (group + 1) * counts // own)
        numbers += self._starts[shards] - self._dataset_starts[dataset]
        return np.where(chosen & (counts > 0), numbers, -1)


def dataset_keys(seed: int, datasets: int) -> NDArray[np.uint64]:
    """Return the key of each dataset of a mixture: (datasets,) uint64."""
    root = np.full(datasets, derive(0, seed), np.uint64)
    return derive_each(root, Stream.DATASET, np.arange(datasets))


def _chosen_table(table: ShardTable, count: int) -> ShardTable:
    samples = table.sample_counts
    if table.sample_count >= _SAMPLE_LIMIT or samples.max(initial=0) >= _SHARD_LIMIT:
        raise BadArgumentError(
            "a fixed choice needs fewer than 2**41 samples, and fewer than 2**31 in a shard",
            field="choice",
        )
    counts = apportion(count, starts_of(samples))
    raw = (table.raw_bytes // np.maximum(samples, 1) + 1) * counts
    blocks = None if table.block_samples is None else np.zeros_like(counts)
    return ShardTable(counts, np.minimum(raw, table.raw_bytes), blocks)
