"""What comes in place of skipped samples: others of the same run, which is in memory then."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order._hash import draw
from headrace.order._skips import Skips, check_within
from headrace.order.v2._runs import Runs

_Array = NDArray[np.int64]


class Skipper:
    """Finds the substitutes of one dataset's skipped samples; each in a logarithm of the list.

    Args:
        skips: The list.
        runs: The dataset's runs.
        title: Names the dataset in errors.

    Raises:
        BadArgumentError: If the list has ids that the dataset lacks, or all it has.
    """

    def __init__(self, skips: Skips, runs: Runs, *, title: str = "the dataset") -> None:
        check_within(skips, runs.sample_count, dataset=title)
        if len(skips) >= runs.sample_count:
            raise BadArgumentError(
                f"skips hold all {runs.sample_count} samples that {title} gives: skip fewer, or"
                " leave it out",
                field="skips",
            )
        self.skips, self._runs = skips, runs
        # How many samples that are kept come before each skipped one.
        self._kept_before = skips.sample_ids - np.arange(len(skips))
        (first, stop), _ = self._ranges(skips.sample_ids)
        alone = self._kept_until(first) == self._kept_until(stop)
        # Skipped samples of runs that are skipped as a whole.
        self._homeless = skips.sample_ids[alone]

    def fill(self, key: int, sample_ids: _Array) -> _Array:
        """Return sample ids with substitutes in place of those skipped.

        Args:
            key: Of the epoch's substitutes.
            sample_ids: (n,) int64; left as they are.
        """
        (lost,) = np.nonzero(self.skips.contains(sample_ids))
        if not len(lost):
            return sample_ids
        filled = sample_ids.copy()
        filled[lost] = self._substitutes(key, sample_ids[lost])
        return filled

    def replaced_by(self, key: int, sample_id: int) -> _Array:
        """Return the skipped samples in whose place a kept one comes, rising: (n,) int64."""
        only = np.array([sample_id])
        # Those of its run, and those of runs and shards that are skipped as a whole.
        (first, stop), _ = self._ranges(only)
        skipped = self.skips.sample_ids
        begin, end = np.searchsorted(skipped, (int(first[0]), int(stop[0])))
        candidates = np.union1d(skipped[begin:end], self._homeless)
        result: _Array = candidates[self._substitutes(key, candidates) == sample_id]
        return result

    def _substitutes(self, key: int, sample_ids: _Array) -> _Array:
        drawn = draw(key, sample_ids.view(np.uint64))
        first = np.zeros_like(sample_ids)
        kept = np.zeros_like(sample_ids)
        whole = (np.zeros_like(sample_ids), np.full_like(sample_ids, self._runs.sample_count))
        for begin, stop in (*self._ranges(sample_ids), whole):
            before = self._kept_until(begin)
            count = self._kept_until(stop) - before
            open_ = kept == 0
            first = np.where(open_, before, first)
            kept = np.where(open_, count, kept)
        rank = first + (drawn % kept.view(np.uint64)).view(np.int64)
        result: _Array = rank + np.searchsorted(self._kept_before, rank, side="right")
        return result

    def _ranges(self, sample_ids: _Array) -> tuple[tuple[_Array, _Array], ...]:
        # The run and the shard of each sample.
        runs = self._runs
        shards = np.searchsorted(runs.first_ids, sample_ids, side="right") - 1
        begin, count = runs.first_ids[shards], runs.sample_counts[shards]
        size = runs.run_samples[shards]
        first = begin + (sample_ids - begin) // size * size
        return (first, np.minimum(first + size, begin + count)), (begin, begin + count)

    def _kept_until(self, sample_ids: _Array) -> _Array:
        result: _Array = sample_ids - np.searchsorted(self.skips.sample_ids, sample_ids)
        return result
