"""Lanes: which lane fills which positions of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LaneSplit:
    """How the positions of an epoch are dealt to its lanes.

    In each unit of `unit` consecutive positions, lane l fills the slots
    [floor(l * unit / lanes), floor((l + 1) * unit / lanes)). A shorter last unit is dealt by the
    same rule, with its own length.

    Attributes:
        sample_count: Positions of the epoch.
        lanes: Number of lanes, >= 1.
        unit: Positions of one unit, >= `lanes`.
    """

    sample_count: int
    lanes: int
    unit: int

    def start(self, lane: int) -> int:
        """Return how many samples all lanes before `lane` hold together."""
        units, rest = divmod(self.sample_count, self.unit)
        return units * (lane * self.unit // self.lanes) + lane * rest // self.lanes

    def length(self, lane: int) -> int:
        """Return how many samples a lane holds."""
        return self.start(lane + 1) - self.start(lane)

    def offset(self, lane: int, position: int) -> int:
        """Return how many of the positions before `position` a lane fills."""
        units, slot = divmod(position, self.unit)
        length = min(self.unit, self.sample_count - units * self.unit)
        first, end = lane * self.unit // self.lanes, (lane + 1) * self.unit // self.lanes
        before, after = lane * length // self.lanes, (lane + 1) * length // self.lanes
        return units * (end - first) + min(slot, after) - min(slot, before)

    def place(self, position: int) -> tuple[int, int, int]:
        """Return where a position lies.

        Args:
            position: In [0, `sample_count`).

        Returns:
            Its lane, its place in that lane, and how many consecutive positions, this one
            included, the lane fills from there.
        """
        units, slot = divmod(position, self.unit)
        length = min(self.unit, self.sample_count - units * self.unit)
        lane = ((slot + 1) * self.lanes - 1) // length
        first, end = lane * length // self.lanes, (lane + 1) * length // self.lanes
        full = (lane + 1) * self.unit // self.lanes - lane * self.unit // self.lanes
        return lane, units * full + slot - first, end - slot

    def stretches(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Cut the positions [start, stop) where the lane changes.

        Returns:
            A lane and a range of its places, for each piece in the order of positions.
        """
        if self.lanes == 1:
            return [(0, start, stop)] if start < stop else []
        found = []
        while start < stop:
            lane, place, rest = self.place(start)
            end = min(stop, start + rest)
            found.append((lane, place, place + end - start))
            start = end
        return found

    def by_lane(self, start: int, stop: int) -> tuple[NDArray[np.intp], list[tuple[int, int, int]]]:
        """Sort the positions [start, stop) by lane, so that each lane is read in one piece.

        Returns:
            The positions as indices from 0, lane by lane, rising within a lane; and in the same
            order each lane with its range of places.
        """
        lanes = self.lane_of(np.arange(start, stop))
        # NumPy sorts 16-bit integers by radix.
        order = np.argsort(
            lanes.astype(np.uint16) if self.lanes <= 1 << 16 else lanes, kind="stable"
        )
        touched = np.unique(lanes)
        places = self.offsets(touched[:, None], np.array([start, stop]))
        pairs = zip(touched.tolist(), places.tolist(), strict=True)
        return order, [(lane, first, end) for lane, (first, end) in pairs]

    def offsets(
        self, lane: int | NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return how many of the positions before each position a lane fills.

        Args:
            lane: In [0, `lanes`), or several, broadcast with the positions.
            positions: (n,) int64 in [0, `sample_count`].
        """
        return self.starts(lane + 1, positions) - self.starts(lane, positions)

    def starts(
        self, lane: int | NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return how many positions before each position the lanes before `lane` fill together."""
        units, slots = np.divmod(positions, self.unit)
        lengths = np.minimum(self.unit, self.sample_count - units * self.unit)
        before: NDArray[np.int64] = np.asarray(lane, np.int64)
        full: NDArray[np.int64] = units * (before * self.unit // self.lanes)
        full += np.minimum(slots, before * lengths // self.lanes)
        return full

    def lane_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lane that fills each position.

        Args:
            positions: (n,) int64 in [0, `sample_count`).
        """
        units, slots = np.divmod(positions, self.unit)
        lengths = np.minimum(self.unit, self.sample_count - units * self.unit)
        lanes: NDArray[np.int64] = ((slots + 1) * self.lanes - 1) // lengths
        return lanes

    def positions(self, lane: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each place of a lane: the inverse of `offsets`.

        Args:
            lane: In [0, `lanes`).
            places: (n,) int64 in [0, length of the lane).
        """
        first = lane * self.unit // self.lanes
        width = (lane + 1) * self.unit // self.lanes - first
        units = np.minimum(places // width, self.sample_count // self.unit)
        lengths = np.minimum(self.unit, self.sample_count - units * self.unit)
        positions: NDArray[np.int64] = units * self.unit + lane * lengths // self.lanes
        positions += places - units * width
        return positions
