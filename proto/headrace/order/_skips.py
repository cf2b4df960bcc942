"""Skips: samples that no run may see again, without moving any position."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, TokenSpecChangedError


class Skips:
    """A list of sample ids to leave out.

    The position of a skipped sample takes the next sample of its window that is not skipped,
    cyclically; if the whole window is skipped, the next one in storage order.

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

    def next_kept(self, sample_id: int, *, first: int, stop: int) -> int:
        """Return the next id of [first, stop), cyclically, that is not skipped.

        Raises:
            BadArgumentError: If all are skipped.
        """
        kept = self._end_of_stretch(sample_id)
        if kept < stop:
            return kept
        kept = self._end_of_stretch(first)
        if kept < sample_id:
            return kept
        raise BadArgumentError(
            f"all {stop - first} samples of a dataset are skipped: leave the dataset out",
            field="skips",
        )

    def _end_of_stretch(self, sample_id: int) -> int:
        # The first id from `sample_id` on that is not skipped.
        later = self._sample_ids[np.searchsorted(self._sample_ids, sample_id) :]
        shifts = later - np.arange(len(later))
        return sample_id + int(np.searchsorted(shifts, sample_id, side="right"))


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
            f"skips: {len(wanted)} samples wanted ({wanted.digest}), the token has {len(found)}"
            f" ({found.digest}), of which {lost} are not among the wanted; a list that holds all"
            " of the token's may be adopted with allow_new_skips",
            field="skips",
        )


def substitute(
    sample_ids: NDArray[np.int64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
    *,
    skips: Skips,
    read: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """Put the next kept sample of its window in the place of each skipped one.

    Args:
        sample_ids: (n,) int64, changed in place.
        places: (n,) int64, the place of each in its permuted window.
        counts: (n,) int64, samples of each one's window.
        skips: The skips.
        read: Takes which of the n are meant and their new places; returns the sample ids there.

    Returns:
        Which of the n are still skipped, because their whole window is: int64.
    """
    pending = np.flatnonzero(skips.contains(sample_ids))
    walked = places[pending]
    lost: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    step = 0
    while len(pending):
        step += 1
        around = counts[pending] <= step
        lost.append(pending[around])
        pending, walked = pending[~around], walked[~around]
        walked = (walked + 1) % counts[pending]
        sample_ids[pending] = read(pending, walked)
        skipped = skips.contains(sample_ids[pending])
        pending, walked = pending[skipped], walked[skipped]
    return np.concatenate(lost)
