"""Skips: samples that no run may see again, without moving any position."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, TokenSpecChangedError


class Skips:
    """A list of sample ids to leave out.

    The position of a skipped sample takes the next sample of its window that is not skipped,
    cyclically; if the whole window is skipped, one of the whole dataset (docs/order.md).

    Args:
        sample_ids: Sample ids, in any order; repeats count once.

    Raises:
        BadArgumentError: If an id is negative.
    """

    def __init__(self, sample_ids: NDArray[np.int64] | Sequence[int]) -> None:
        self._sample_ids = np.unique(np.asarray(sample_ids, np.int64))
        if len(self._sample_ids) and self._sample_ids[0] < 0:
            raise BadArgumentError(
                f"skips hold the sample id {int(self._sample_ids[0])}, ids begin at 0",
                field="skips",
            )
        self._sample_ids.flags.writeable = False

    def __len__(self) -> int:
        return len(self._sample_ids)

    @property
    def sample_ids(self) -> NDArray[np.int64]:
        """The ids, rising: (n,) int64, not writeable."""
        return self._sample_ids

    @property
    def digest(self) -> str:
        """BLAKE2b-128 of the ids as little-endian int64: 32 hexadecimal digits."""
        little_endian = self._sample_ids.astype("<i8").tobytes()
        return hashlib.blake2b(little_endian, digest_size=16, person=b"headrace-skips").hexdigest()

    def contains(self, sample_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some sample ids are skipped."""
        if not len(self._sample_ids):
            return np.zeros(len(sample_ids), np.bool_)
        places = np.searchsorted(self._sample_ids, sample_ids)
        places[places == len(self._sample_ids)] = 0
        skipped: NDArray[np.bool_] = self._sample_ids[places] == sample_ids
        return skipped

    def count_in(self, first: int, stop: int) -> int:
        """Return how many ids of [first, stop) are skipped."""
        begin, end = np.searchsorted(self._sample_ids, (first, stop)).tolist()
        return int(end - begin)

    def next_kept(
        self, sample_ids: NDArray[np.int64], first: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the first id from each of some on, cyclically in a range, that is not skipped.

        Args:
            sample_ids: (n,) int64, each in its range.
            first: (n,) int64, where its range begins.
            stop: (n,) int64, where its range ends; not all of it is skipped.

        Returns:
            (n,) int64, owned by the caller.
        """
        kept = self._ends_of_stretches(sample_ids)
        (around,) = np.nonzero(kept >= stop)
        kept[around] = self._ends_of_stretches(first[around])
        return kept

    def _ends_of_stretches(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        # The first id from each on that is not skipped. In a stretch of skipped ids an id less its
        # place in the list stays the same, and after it it is greater.
        low = np.searchsorted(self._sample_ids, sample_ids)
        shifts = sample_ids - low
        high = np.full_like(low, len(self._sample_ids))
        while (open_ := low < high).any():
            middle = (low + high) // 2
            ids = self._sample_ids[np.minimum(middle, len(self._sample_ids) - 1)]
            inside = open_ & (ids - middle <= shifts)
            low = np.where(inside, middle + 1, low)
            high = np.where(open_ & ~inside, middle, high)
        return shifts + low


def check_within(skips: Skips | None, sample_count: int, *, dataset: str) -> None:
    """Refuse a list with ids that a dataset does not have.

    Such a list is of another dataset or version, and in a mixture it would mean samples of the
    next dataset.

    Args:
        skips: The list, or None.
        sample_count: Samples of the dataset, in the version that is read.
        dataset: Its name, for the message.

    Raises:
        BadArgumentError: If an id is `sample_count` or more.
    """
    if skips is None or not len(skips) or int(skips.sample_ids[-1]) < sample_count:
        return
    beyond = len(skips) - int(np.searchsorted(skips.sample_ids, sample_count))
    raise BadArgumentError(
        f"skips hold the sample id {int(skips.sample_ids[-1])}, and {beyond - 1} more that"
        f" {dataset!r} does not have: its ids are [0, {sample_count}); leave them out, or give the"
        " list of this dataset and version",
        field="skips",
    )


def check_skips(wanted: Skips, found: Skips, *, allow_new_skips: bool = False) -> None:
    """Refuse to go on with another list of skips than a token was made with.

    Args:
        wanted: The list that was asked for.
        found: The list that the token's digest names.
        allow_new_skips: Whether a list that skips more may be adopted.

    Raises:
        TokenSpecChangedError: If the lists differ, or `wanted` lacks some of `found`.
    """
    if wanted.digest == found.digest:
        return
    lost = int((~wanted.contains(found.sample_ids)).sum())
    if lost or not allow_new_skips:
        raise TokenSpecChangedError(
            f"skips: {len(wanted)} samples requested ({wanted.digest}), the token has {len(found)}"
            f" ({found.digest}), of which {lost} are not among those requested; a "
            "list that holds all"
            " of the token's may be adopted with allow_new_skips",
            field="skips",
        )


def check_some_kept(skips: Skips, first: int, stop: int, *, title: str) -> None:
    """Refuse to leave out all samples of a dataset that has some.

    Args:
        skips: The skips.
        first: The dataset's first sample id.
        stop: The one after its last.
        title: Names the dataset in the error.

    Raises:
        BadArgumentError: They are all skipped.
    """
    if first < stop and skips.count_in(first, stop) == stop - first:
        raise BadArgumentError(
            f"all {stop - first} samples of {title} are skipped; skip fewer, or leave it out",
            field="skips",
        )
