"""Skips: leave samples out without changing the position of any other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order.basics.hash import draw
from headrace.order.samples.runs import Runs

_Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True, init=False)
class Skips:
    """A list of sample ids to leave out.

    A skipped sample is replaced by another sample of its run; if the whole run is skipped, by one
    of its shard, or else of the whole dataset (docs/order.md).

    Args:
        sample_ids: Sample ids, in any order; repeats count once.

    Attributes:
        sample_ids: The ids, rising: ``(n,) int64``, not writeable.
        digest: BLAKE2b-128 of the ids as little-endian int64: 32 hexadecimal digits.

    Raises:
        BadArgumentError: An id is negative.

    Examples:
        >>> skips = Skips([7, 3, 7])
        >>> skips.sample_ids
        array([3, 7])
    """

    sample_ids: _Array = field(compare=False)
    digest: str

    def __init__(self, sample_ids: _Array | Sequence[int]) -> None:
        distinct = np.unique(np.asarray(sample_ids, np.int64))
        if len(distinct) and distinct[0] < 0:
            raise BadArgumentError(
                f"skips contain the sample id {int(distinct[0])}, but ids start at 0", field="skips"
            )
        distinct.flags.writeable = False
        little_endian = distinct.astype("<i8").tobytes()
        found = hashlib.blake2b(little_endian, digest_size=16, person=b"headrace-skips")
        object.__setattr__(self, "sample_ids", distinct)
        object.__setattr__(self, "digest", found.hexdigest())

    def __len__(self) -> int:
        return len(self.sample_ids)

    def contains(self, sample_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the sample ids are skipped: (n,) bool."""
        if not len(self.sample_ids):
            return np.zeros(len(sample_ids), np.bool_)
        places = np.searchsorted(self.sample_ids, sample_ids)
        places[places == len(self.sample_ids)] = 0
        skipped: NDArray[np.bool_] = self.sample_ids[places] == sample_ids
        return skipped

    def count_in(self, first: int, stop: int) -> int:
        """Return how many ids in [first, stop) are skipped."""
        start, end = np.searchsorted(self.sample_ids, (first, stop)).tolist()
        return int(end - start)


class Skipper:
    """Finds the substitutes for skipped samples of one dataset, each in logarithmic time.

    Args:
        skips: The list.
        runs: The dataset's runs.
        title: Names the dataset in errors.

    Raises:
        BadArgumentError: The list has ids that the dataset does not have, or all ids of it.
    """

    def __init__(self, skips: Skips, runs: Runs, *, title: str = "the dataset") -> None:
        check_within(skips, runs.sample_count, dataset=title)
        if len(skips) >= runs.sample_count:
            raise BadArgumentError(
                f"skips contain all {runs.sample_count} samples of {title}: skip fewer, or leave "
                "the dataset out",
                field="skips",
            )
        self.skips, self._runs = skips, runs
        # How many kept samples come before each skipped one.
        self._kept_before = skips.sample_ids - np.arange(len(skips))
        (first, stop), _ = self._ranges(skips.sample_ids)
        alone = self._kept_until(first) == self._kept_until(stop)
        # Skipped samples whose whole run is skipped.
        self._homeless = skips.sample_ids[alone]

    def fill(self, key: int, sample_ids: _Array) -> _Array:
        """Return sample ids with substitutes in place of those skipped.

        Args:
            key: The key of the epoch's substitutes.
            sample_ids: (n,) int64; not changed.
        """
        (lost,) = np.nonzero(self.skips.contains(sample_ids))
        if not len(lost):
            return sample_ids
        filled = sample_ids.copy()
        filled[lost] = self._substitutes(key, sample_ids[lost])
        return filled

    def replaced_by(self, key: int, sample_id: int) -> _Array:
        """Return the skipped samples that a kept sample replaces, rising: (n,) int64."""
        only = np.array([sample_id])
        # Candidates: skipped samples of its run, and of runs and shards that are skipped as a
        # whole.
        (first, stop), _ = self._ranges(only)
        skipped = self.skips.sample_ids
        start, end = np.searchsorted(skipped, (int(first[0]), int(stop[0])))
        candidates = np.union1d(skipped[start:end], self._homeless)
        result: _Array = candidates[self._substitutes(key, candidates) == sample_id]
        return result

    def _substitutes(self, key: int, sample_ids: _Array) -> _Array:
        drawn = draw(key, sample_ids.view(np.uint64))
        first = np.zeros_like(sample_ids)
        kept = np.zeros_like(sample_ids)
        whole = (np.zeros_like(sample_ids), np.full_like(sample_ids, self._runs.sample_count))
        for start, stop in (*self._ranges(sample_ids), whole):
            before = self._kept_until(start)
            count = self._kept_until(stop) - before
            open_ = kept == 0
            first = np.where(open_, before, first)
            kept = np.where(open_, count, kept)
        rank = first + (drawn % kept.view(np.uint64)).view(np.int64)
        result: _Array = rank + np.searchsorted(self._kept_before, rank, side="right")
        return result

    def _ranges(self, sample_ids: _Array) -> tuple[tuple[_Array, _Array], ...]:
        # Return the bounds of each sample's run and shard.
        runs = self._runs
        shards = np.searchsorted(runs.first_ids, sample_ids, side="right") - 1
        start, count = runs.first_ids[shards], runs.sample_counts[shards]
        size = runs.run_samples[shards]
        first = start + (sample_ids - start) // size * size
        return (first, np.minimum(first + size, start + count)), (start, start + count)

    def _kept_until(self, sample_ids: _Array) -> _Array:
        result: _Array = sample_ids - np.searchsorted(self.skips.sample_ids, sample_ids)
        return result


def skipper_of(skips: Skips | None, runs: Runs, sample_ids: Sequence[int]) -> Skipper:
    """Return a skipper for a list of skips and some more samples.

    Args:
        skips: The list; None for no skips.
        runs: The dataset's runs.
        sample_ids: More samples to leave out.

    Raises:
        BadArgumentError: No sample would be left.
    """
    before = () if skips is None else skips.sample_ids
    return Skipper(Skips(np.concatenate([before, np.array(sample_ids, np.int64)])), runs)


def check_within(skips: Skips | None, sample_count: int, *, dataset: str) -> None:
    """Refuse a list with ids that a dataset does not have.

    Such a list belongs to another dataset or version. In a mixture its ids would stand for samples
    of the next dataset.

    Args:
        skips: The list, or None.
        sample_count: Samples of the dataset, in the version that is read.
        dataset: Its name, for the message.

    Raises:
        BadArgumentError: An id is `sample_count` or more.
    """
    if skips is None or not len(skips) or int(skips.sample_ids[-1]) < sample_count:
        return
    beyond = len(skips) - int(np.searchsorted(skips.sample_ids, sample_count))
    raise BadArgumentError(
        f"skips contain the sample id {int(skips.sample_ids[-1])} and {beyond - 1} more that "
        f"{dataset!r} does not have: its ids are [0, {sample_count}); leave them out, or give the "
        "list for this dataset and version",
        field="skips",
    )


def check_skips(wanted: Skips, found: Skips, *, allow_new_skips: bool = False) -> None:
    """Refuse to resume with another list of skips than a token was made with.

    Args:
        wanted: The list that was asked for.
        found: The list that the token's digest names.
        allow_new_skips: Whether `wanted` may skip more samples than `found`.

    Raises:
        TokenSpecChangedError: The lists differ, or `wanted` lacks some ids of `found`.
    """
    if wanted.digest == found.digest:
        return
    lost = int((~wanted.contains(found.sample_ids)).sum())
    if lost or not allow_new_skips:
        raise TokenSpecChangedError(
            f"skips: {len(wanted)} samples requested ({wanted.digest}), the token has {len(found)} "
            f"({found.digest}), and {lost} of these are not among those requested; a list that "
            "contains all of the token's can be adopted with allow_new_skips",
            field="skips",
        )


def join_skips(skips: Sequence[Skips | None] | None, first_ids: NDArray[np.int64]) -> Skips | None:
    """Return the skips of all datasets of a mixture as one list; None if there are none.

    Args:
        skips: The skips of each dataset; None for no skips.
        first_ids: ``(datasets + 1,) int64``: the id in the mixture of each dataset's first sample,
            followed by the number of samples of the mixture.

    Raises:
        BadArgumentError: The number of lists is not the number of datasets.
    """
    if skips is None or all(each is None for each in skips):
        return None
    if len(skips) != len(first_ids) - 1:
        raise BadArgumentError(
            f"skips are given for {len(skips)} datasets, but the mixture has {len(first_ids) - 1}",
            field="skips",
        )
    joined = [
        each.sample_ids + first
        for each, first in zip(skips, first_ids[:-1].tolist(), strict=True)
        if each is not None
    ]
    return Skips(np.concatenate(joined))


def check_some_kept(skips: Skips, first: int, stop: int, *, title: str) -> None:
    """Refuse skips that leave nothing of a dataset which has samples.

    Args:
        skips: The skips.
        first: The dataset's first sample id.
        stop: The id after its last.
        title: Names the dataset in the error.

    Raises:
        BadArgumentError: All its samples are skipped.
    """
    if first < stop and skips.count_in(first, stop) == stop - first:
        raise BadArgumentError(
            f"all {stop - first} samples of {title} are skipped; skip fewer, or leave the "
            "dataset out",
            field="skips",
        )
