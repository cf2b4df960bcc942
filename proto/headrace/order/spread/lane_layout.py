"""The layout of one lane: its stretch of the layout of an epoch, with halves of runs first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order.spread.halves import Halves
from headrace.order.spread.spread import Spread, StoredLayout

_Array: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LaneLayout:
    """The layout of one lane. Offsets count the samples of the lane.

    Attributes:
        layout: The layout of the epoch.
        start: Where the lane starts there.
        opening: The offsets [first, stop) at which halves of runs come.
        halves: Returns these halves; called only if an offset lies there.
    """

    layout: Spread | StoredLayout
    start: int
    opening: tuple[int, int]
    halves: Callable[[], Halves]

    def sample_ids(self, offsets: _Array) -> _Array:
        """Return the sample id at each offset: (n,) int64."""
        return self.layout.sample_ids(self._moved(offsets, back=False) + self.start)

    def offsets(self, in_layout: _Array) -> _Array:
        """Return the offset of each sample of the lane, given its offset in the epoch's layout."""
        return self._moved(in_layout - self.start, back=True)

    def between(self, low: int, high: int) -> _Array:
        """Return the sample ids at the offsets [low, high): (high - low,) int64."""
        first, stop = self.opening
        if high <= first or stop <= low:
            return self.layout.between(self.start + low, self.start + high)
        return self.sample_ids(np.arange(low, high))

    def stretch(self, low: int, high: int) -> tuple[_Array, _Array] | None:
        """Return the runs in [low, high), or parts of them; see `Spread.stretch`."""
        first, stop = self.opening
        found = []
        for start, end in ((low, min(high, first)), (max(low, stop), high)):
            if start < end:
                found.append(self.layout.stretch(self.start + start, self.start + end))
        if max(low, first) < min(high, stop):
            inside = self.halves().stretch(max(low, first) - first, min(high, stop) - first)
            found.insert(1 if low < first else 0, inside)
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        if len(known) == 1:
            return known[0]
        ids, lengths = zip(*known, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def _moved(self, offsets: _Array, *, back: bool) -> _Array:
        # Move offsets in the opening from halves to the layout, or back.
        first, stop = self.opening
        inside = (offsets >= first) & (offsets < stop)
        if not inside.any():
            return offsets
        halves, moved = self.halves(), offsets.copy()
        move = halves.places_of if back else halves.offsets_at
        moved[inside] = move(offsets[inside] - first) + first
        return moved
