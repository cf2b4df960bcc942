"""Length buckets: batches of samples of like length, in shuffled order.

Each window of an epoch is sorted by length and cut into units again. So the positions of an order
are rearranged within windows; nothing else changes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import TokenMalformedError
from headrace.order.basics.hash import Stream, derive
from headrace.order.basics.permutation import permutation

LEAST_BUCKETS: Final = 2
MOST_BUCKETS: Final = 1 << 16
"""Most units of a window."""
MOST_BUCKET_SAMPLES: Final = 1 << 18
"""Most samples of a window, because a window is found and sorted at once."""

_TEXT: Final = re.compile("([1-9][0-9]{0,4})(?: ([0-9a-f]{32}))?")


def buckets_text(units: int, lengths: str) -> str:
    """Return what a token says about buckets; empty without buckets.

    Args:
        units: The units of a window; 0 without buckets.
        lengths: The digest of the lengths to sort by; empty if no sample has been sorted yet.
    """
    return " ".join([str(units), *([lengths] if lengths else [])]) if units else ""


def split_buckets(text: str) -> tuple[int, str]:
    """Return the units and the digest of what a token says about buckets; 0 and nothing for none.

    Raises:
        TokenMalformedError: It says nothing that can be.
    """
    if not text:
        return 0, ""
    found = _TEXT.fullmatch(text)
    if found is None or not LEAST_BUCKETS <= int(found[1]) <= MOST_BUCKETS:
        raise TokenMalformedError(
            f"the token contains the buckets {text[:100]!r}; expected {LEAST_BUCKETS} to "
            f"{MOST_BUCKETS} units, and perhaps a digest of lengths"
        )
    return int(found[1]), found[2] or ""


@dataclass(frozen=True, slots=True)
class Window:
    """Positions of an epoch that are rearranged among themselves.

    Attributes:
        number: Number of the window in its epoch, from 0.
        start: First position.
        stop: Position after the last.
    """

    number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """The windows of an order, and how each is rearranged.

    Attributes:
        seed: Seed of the order.
        shuffle: Whether the order is shuffled; otherwise the units of a window have rising lengths.
        lanes: Lanes of the order; each is rearranged separately.
        unit: Unit of the order, which is also the size of a bucket in positions.
        sample_count: Positions of an epoch.
        units: Most buckets of a window.
    """

    seed: int
    shuffle: bool
    lanes: int
    unit: int
    sample_count: int
    units: int

    @property
    def window_count(self) -> int:
        """Return how many windows an epoch has."""
        return -(-(self.sample_count // self.unit) // self.units)

    def window(self, position: int) -> Window | None:
        """Return the window that holds a position; None in an incomplete last unit."""
        full, count = self.sample_count // self.unit, self.window_count
        unit = position // self.unit
        if unit >= full:
            return None
        number = ((unit + 1) * count - 1) // full
        first, end = number * full // count, (number + 1) * full // count
        return Window(number, first * self.unit, end * self.unit)

    def arrangement(
        self, epoch: int, window: Window, lengths: NDArray[np.int64] | NDArray[np.uint16]
    ) -> NDArray[np.int64]:
        """Return the place in the order of what comes at each place of a window.

        Args:
            epoch: The epoch.
            window: The window.
            lengths: ``(places,)``: the length of each sample of the window, in the order.

        Returns:
            ``(places,) int64``: places in the window, from 0.
        """
        unit, lanes = self.unit, self.lanes
        count = len(lengths) // unit
        units = np.arange(count)
        if self.shuffle:
            key = derive(0, self.seed, epoch, Stream.BUCKETS, window.number)
            units = permutation(key, count)
        places = np.arange(count * unit).reshape(count, unit)
        arranged = np.empty((count, unit), np.int64)
        for lane in range(lanes):
            slots = slice(lane * unit // lanes, (lane + 1) * unit // lanes)
            own = places[:, slots].ravel()
            sorted_own = own[np.argsort(lengths[own], kind="stable")].reshape(count, -1)
            arranged[:, slots] = np.sort(sorted_own, axis=1)[units]
        return arranged.ravel()
