"""The opening of a lane, where the runs come in halves.

The first step of a lane takes samples from as many runs as any other. Memory cannot hold these runs
as well as those of the end of the epoch before, so the halves of the runs, which are whole blocks,
come one after the other: first halves in the order of the layout, and then second halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order.basics.segments import starts_of
from headrace.order.samples.runs import Runs

_Array: TypeAlias = NDArray[np.int64]


class Layout(Protocol):
    """The parts of a layout that are needed here."""

    def stretch(self, low: int, high: int) -> tuple[_Array, _Array] | None:
        """Return the runs in a range of offsets, and how many samples of each lie there."""


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """The halves of the runs in one stretch of a layout.

    Offsets count samples from `first_offset` of the layout, in the order of the layout or, where
    they are called places, in that of the halves.

    Attributes:
        places: (halves + 1,) int64, the place of each half's first sample, rising, and their end.
        offsets: (halves,) int64, the offset of each half's first sample.
        first_ids: (halves,) int64, the id of each half's first sample.
        by_offset: (halves,) int64, the halves in the order of their offsets.
    """

    places: _Array
    offsets: _Array
    first_ids: _Array
    by_offset: _Array

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return 32 * len(self.first_ids)

    def offsets_at(self, places: _Array) -> _Array:
        """Return the offset of the sample at each place: (n,) int64."""
        halves = np.searchsorted(self.places, places, side="right") - 1
        result: _Array = self.offsets[halves] + places - self.places[halves]
        return result

    def places_of(self, offsets: _Array) -> _Array:
        """Return the place of the sample at each offset: the inverse of `offsets_at`."""
        order = self.by_offset
        halves = order[np.searchsorted(self.offsets[order], offsets, side="right") - 1]
        result: _Array = self.places[halves] + offsets - self.offsets[halves]
        return result

    def stretch(self, low: int, high: int) -> tuple[_Array, _Array]:
        """Return the first ids and lengths of the halves, or parts of them, at places [low, high).

        Args:
            low: The first place.
            high: The place after the last, > `low`.
        """
        start = int(np.searchsorted(self.places, low, side="right")) - 1
        end = int(np.searchsorted(self.places, high))
        edges = np.clip(self.places[start : end + 1], low, high)
        first_ids = self.first_ids[start:end] + edges[:-1] - self.places[start:end]
        return first_ids, np.diff(edges)


def halve(layout: Layout, runs: Runs, first: int, stop: int) -> Halves:
    """Cut the runs in a stretch of a layout into halves.

    Args:
        layout: The layout.
        runs: The dataset's runs.
        first: The first offset of the stretch.
        stop: The offset after its last, > `first`.
    """
    ids, lengths = _runs_between(layout, first, stop)
    firsts = np.clip(runs.half_ends(ids) - ids, 0, lengths)
    offsets = starts_of(lengths)[:-1]
    all_lengths = np.concatenate([firsts, lengths - firsts])
    (there,) = np.nonzero(all_lengths)
    offsets = np.concatenate([offsets, offsets + firsts])[there]
    return Halves(
        places=starts_of(all_lengths[there]),
        offsets=offsets,
        first_ids=np.concatenate([ids, ids + firsts])[there],
        by_offset=np.argsort(offsets),
    )


def _runs_between(layout: Layout, low: int, high: int) -> tuple[_Array, _Array]:
    found = layout.stretch(low, high)
    if found is not None:
        return found
    middle = (low + high) // 2
    first, second = _runs_between(layout, low, middle), _runs_between(layout, middle, high)
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])
