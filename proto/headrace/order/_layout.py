"""Layouts: the permuted parts of one pass over a dataset, laid end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.order._parts import PartTable
from headrace.order._permutation import permutations
from headrace.order._segments import spread, starts_of, totals


@dataclass(frozen=True, slots=True, eq=False)
class Layouts:
    """Where each part lies in one or more passes, which lie one after the other here.

    Attributes:
        parts: The parts in storage order.
        datasets: (passes,) int64, the dataset of each pass.
        order: (places,) int32, the part at each place.
        ends: (places,) int64, samples of all parts up to and with each place.
        place_starts: (passes + 1,) int64, the first place of each pass.
        starts: (passes + 1,) int64, the first offset of each pass.
    """

    parts: PartTable
    datasets: NDArray[np.int64]
    order: NDArray[np.int32]
    ends: NDArray[np.int64]
    place_starts: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes that belong to these passes alone."""
        return self.order.nbytes + self.ends.nbytes

    def join(self, later: Layouts) -> Layouts:
        """Return these passes followed by others over the same parts."""
        place, offset = self.place_starts[-1], self.starts[-1]
        return Layouts(
            self.parts,
            np.append(self.datasets, later.datasets),
            np.append(self.order, later.order),
            np.append(self.ends, later.ends + offset),
            np.append(self.place_starts, later.place_starts[1:] + place),
            np.append(self.starts, later.starts[1:] + offset),
        )

    def places(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of the part that holds each offset."""
        return np.searchsorted(self.ends, offsets, side="right")

    def begins(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the offset at which the part of each place begins."""
        begins: NDArray[np.int64] = self.ends[places] - self.parts.sample_counts[self.order[places]]
        return begins

    def sample_ids(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample id at each offset.

        Args:
            offsets: (n,) int64 in [0, samples of all passes).
        """
        places = self.places(offsets)
        sample_ids: NDArray[np.int64] = self.parts.first_ids[self.order[places]]
        sample_ids += offsets - self.begins(places)
        return sample_ids


def shuffled_layouts(
    parts: PartTable, datasets: NDArray[np.int64], keys: NDArray[np.uint64]
) -> Layouts:
    """Lay out the parts of each pass in the order of its key.

    Args:
        parts: The parts of all datasets.
        datasets: (passes,) int64, the dataset of each pass.
        keys: (passes,) uint64, the key of each pass.
    """
    lengths = np.diff(parts.starts)[datasets]
    order = permutations(keys, lengths)
    return _layouts(parts, datasets, lengths, order)


def stored_layouts(parts: PartTable, datasets: NDArray[np.int64]) -> Layouts:
    """Lay out the parts of each pass in storage order."""
    lengths = np.diff(parts.starts)[datasets]
    return _layouts(parts, datasets, lengths, spread(lengths)[1])


def _layouts(
    parts: PartTable,
    datasets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    order: NDArray[np.int64],
) -> Layouts:
    if len(datasets) > 1:
        order += np.repeat(parts.starts[datasets], lengths)
    else:
        order += parts.starts[datasets]
    ends = parts.sample_counts[order]
    starts = starts_of(totals(ends, lengths))
    np.cumsum(ends, out=ends)
    return Layouts(parts, datasets, order.astype(np.int32), ends, starts_of(lengths), starts)
