"""Substitutes: which sample stands at the position of a skipped one, found in jumps.

The skipped places of a window form stretches, which may be as long as the list of skips. A stretch
that ends among the places that are read together costs nothing more. Of one that goes on, ever
more places are read at once; long ones are remembered, so that nobody goes along them again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order._skips import Skips

Read: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""Takes which samples' windows are meant, and places in them; returns the sample ids there."""

# The most places to read at once, for all stretches together; 0.5 MiB of sample ids.
_READ_PLACES: Final = 1 << 16
# Shorter stretches are found again in as many calls as it takes to look them up.
_LONG_STRETCH: Final = 16
# How many windows have their last long stretch remembered; some 2 MiB.
_MAX_STRETCHES: Final = 1 << 14


class Substitutes:
    """Puts the next kept sample of its window in the place of each skipped one.

    Not safe for several threads.

    Args:
        skips: The skips.
    """

    def __init__(self, skips: Skips) -> None:
        self._skips = skips
        self._stretches: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def fill(
        self,
        sample_ids: NDArray[np.int64],
        places: NDArray[np.int64],
        counts: NDArray[np.int64],
        *,
        windows: NDArray[np.uint64],
        read: Read,
    ) -> NDArray[np.int64]:
        """Replace the skipped among some samples.

        Args:
            sample_ids: (n,) int64, changed in place.
            places: (n,) int64, the place of each in its permuted window.
            counts: (n,) int64, samples of each one's window.
            windows: (n,) uint64, tell windows apart.
            read: Gives the samples at other places of the windows of some of the n.

        Returns:
            Which of the n have a window that is skipped as a whole: int64. They hold the sample of
            the place before theirs, cyclically.
        """
        skipped = self._skips.contains(sample_ids)
        if not skipped.any():
            return np.empty(0, np.int64)
        # Each looks at those that follow it here, up to the first that is kept or the last of its
        # window.
        ends = np.ones(len(places), np.bool_)
        ends[:-1] = (windows[1:] != windows[:-1]) | (places[1:] != places[:-1] + 1)
        stops = np.where(ends | ~skipped, np.arange(len(places)), len(places))
        pending = np.flatnonzero(skipped)
        last = np.minimum.accumulate(stops[::-1])[::-1][pending]
        # From there on other places have to be read.
        tails = np.unique(last[skipped[last]])
        steps = self._steps(tails, places[tails], counts[tails], windows[tails], read)
        found = sample_ids.copy()
        found[tails] = read(tails, (places[tails] + steps) % counts[tails])
        sample_ids[pending] = found[last]
        lost: NDArray[np.int64] = pending[np.isin(last, tails[steps == counts[tails]])]
        sample_ids[lost] = read(lost, (places[lost] - 1) % counts[lost])
        return lost

    def _steps(
        self,
        tails: NDArray[np.int64],
        places: NDArray[np.int64],
        counts: NDArray[np.int64],
        windows: NDArray[np.uint64],
        read: Read,
    ) -> NDArray[np.int64]:
        # How far the next kept place is, of all the window if there is none.
        steps = self._known(places, counts, windows)
        (walked,) = np.nonzero(steps == 0)
        walking, first, width = walked, 1, 1
        while len(walking):
            further = places[walking][:, None] + np.arange(first, first + width)
            further %= counts[walking][:, None]
            ids = read(np.repeat(tails[walking], width), further.reshape(-1))
            kept = ~self._skips.contains(ids).reshape(further.shape)
            has_kept = kept.any(axis=1)
            steps[walking] = first + np.where(has_kept, kept.argmax(axis=1), width)
            first += width
            walking = walking[~has_kept & (first < counts[walking])]
            width = max(1, min(2 * width, _READ_PLACES // max(1, len(walking))))
        np.minimum(steps, counts, out=steps)
        long = walked[steps[walked] >= _LONG_STRETCH]
        self._remember(places[long], steps[long], windows[long])
        return steps

    def _known(
        self, places: NDArray[np.int64], counts: NDArray[np.int64], windows: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        steps = np.zeros(len(places), np.int64)
        if not self._stretches:
            return steps
        rows = zip(windows.tolist(), places.tolist(), counts.tolist(), strict=True)
        for row, (window, place, count) in enumerate(rows):
            start, length = self._stretches.get(window, (0, 0))
            inside = (place - start) % count
            if length == count:
                steps[row] = count
            elif inside < length:
                steps[row] = length - inside
        return steps

    def _remember(
        self, places: NDArray[np.int64], steps: NDArray[np.int64], windows: NDArray[np.uint64]
    ) -> None:
        found = zip(places.tolist(), steps.tolist(), strict=True)
        for window, stretch in zip(windows.tolist(), found, strict=True):
            self._stretches[window] = stretch
            self._stretches.move_to_end(window)
        while len(self._stretches) > _MAX_STRETCHES:
            self._stretches.popitem(last=False)


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
