"""Whole cohorts, dealt once for all their steps: what `Dealings.offsets` says sample by sample.

A cohort has samples in each of as many steps as it has slices. Here it is looked up in its lane's
layout and dealt as a whole, and each of those steps takes a row of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order.basics.bounded_cache import BoundedCache
from headrace.order.dealing.dealing import FullCohorts, members_of

_Array: TypeAlias = NDArray[np.int64]
_Ids: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

# Small cohorts are dealt several at a time.
_BLOCK_SAMPLES: Final = 1 << 14
_STEP_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class LaneDeal:
    """A lane's cohorts in one epoch.

    Attributes:
        name: Epoch and lane.
        cohorts: Those of the full size.
        keys: (1,) uint64, of the dealing.
        second_keys: (1,) uint64, what draws add to the key half-way.
        ids_between: Returns the sample ids between two offsets of the lane's layout.
    """

    name: tuple[int, int]
    cohorts: FullCohorts
    keys: NDArray[np.uint64]
    second_keys: NDArray[np.uint64]
    ids_between: Callable[[int, int], _Array]


class DealtSteps:
    """The samples of steps in the order of their slots; safe to call from several threads.

    Args:
        sample_count: Samples of the dataset; ids take four bytes where they fit.
        budget_bytes: The memory for cohorts.
    """

    def __init__(self, sample_count: int, budget_bytes: int) -> None:
        fits = sample_count <= np.iinfo(np.int32).max
        self._dtype: Final = np.dtype(np.int32 if fits else np.int64)
        self._budget_bytes = budget_bytes
        self._blocks: BoundedCache[tuple[int, ...], _Ids] = BoundedCache(budget_bytes)
        self._steps: BoundedCache[tuple[int, ...], _Ids] = BoundedCache(_STEP_BYTES)

    @property
    def held_bytes(self) -> int:
        """Bytes of all that is kept."""
        return self._blocks.held_bytes + self._steps.held_bytes

    def has_room_for(self, memory_samples: int) -> bool:
        """Return whether all cohorts fit that lanes with that many samples in memory deal from.

        If not, each step would deal all of its cohorts again.
        """
        return memory_samples * self._dtype.itemsize <= self._budget_bytes

    def read(self, deal: LaneDeal, first: int, stop: int) -> _Ids:
        """Return the samples of the steps [first, stop), each in the order of its slots.

        Args:
            deal: The deal that the steps belong to.
            first: The first; all must have full cohorts alone.
            stop: The step after the last.

        Returns:
            (samples of those steps,) of int32 or int64; not to be changed.
        """
        return self._steps.get((*deal.name, first, stop), lambda: self._join(deal, first, stop))

    def _join(self, deal: LaneDeal, first: int, stop: int) -> _Ids:
        cohorts = deal.cohorts
        together = max(_BLOCK_SAMPLES // (cohorts.slices * cohorts.groups), 1)
        found = np.empty((stop - first, cohorts.slices, cohorts.groups), self._dtype)
        # The oldest cohorts first, which lie first in the layout.
        for part in reversed(range(cohorts.slices)):
            # A step has the first slice of its own cohort, the second of the one before it, ...
            begin = first - part - cohorts.first
            end, at = begin + stop - first, begin
            while at < end:
                number, place = divmod(at, together)
                block = self._block(deal, number, together)
                count = min(end - at, together - place)
                rows = slice(at - begin, at - begin + count)
                found[rows, cohorts.slices - 1 - part] = block[part, place : place + count]
                at += count
        return found.ravel()

    def _block(self, deal: LaneDeal, number: int, together: int) -> _Ids:
        cohorts = deal.cohorts

        def make() -> _Ids:
            count = min(together, cohorts.count - number * together)
            size = cohorts.slices * cohorts.groups
            begin = cohorts.begin + number * together * size
            ids = deal.ids_between(begin, begin + count * size).astype(self._dtype)
            starts = np.arange(count * cohorts.groups) * cohorts.slices
            members = members_of(deal.keys, deal.second_keys, begin + starts, cohorts.slices)
            members += starts
            dealt: _Ids = ids.take(members)
            return dealt.reshape(cohorts.slices, count, cohorts.groups)

        return self._blocks.get((*deal.name, number), make)
