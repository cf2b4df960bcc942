"""Deal whole cohorts once for all their steps, where `Dealings.offsets` goes sample by sample.

A cohort has as many slices as there are steps that take samples from it. Here the whole cohort is
looked up in its lane's layout and dealt, and each of those steps takes one row of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.caches import BoundedCache
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
        cohorts: The lane's cohorts of full size.
        keys: (1,) uint64, the key of the dealing.
        second_keys: (1,) uint64, what `second_keys_of` returns for the key.
        ids_between: Returns the sample ids between two offsets of the lane's layout.
    """

    name: tuple[int, int]
    cohorts: FullCohorts
    keys: NDArray[np.uint64]
    second_keys: NDArray[np.uint64]
    ids_between: Callable[[int, int], _Array]


class DealtSteps:
    """The samples of steps in the order of their slots; thread-safe.

    Args:
        sample_count: Samples of the dataset; ids take four bytes if they fit.
        budget_bytes: Memory for cohorts.
    """

    def __init__(self, sample_count: int, budget_bytes: int) -> None:
        fits = sample_count <= np.iinfo(np.int32).max
        self._dtype: Final = np.dtype(np.int32 if fits else np.int64)
        self._budget_bytes = budget_bytes
        self._blocks: BoundedCache[tuple[int, ...], _Ids] = BoundedCache(budget_bytes)
        self._steps: BoundedCache[tuple[int, ...], _Ids] = BoundedCache(_STEP_BYTES)

    @property
    def held_bytes(self) -> int:
        """Bytes of the cohorts that are kept."""
        return self._blocks.held_bytes + self._steps.held_bytes

    def has_room_for(self, memory_samples: int) -> bool:
        """Return whether the budget holds all cohorts that lanes deal from at one time.

        If it does not, each step would deal all of its cohorts again.

        Args:
            memory_samples: Samples that are shuffled together.
        """
        return memory_samples * self._dtype.itemsize <= self._budget_bytes

    def read(self, deal: LaneDeal, first: int, stop: int) -> _Ids:
        """Return the samples of the steps [first, stop), each in the order of its slots.

        Args:
            deal: The deal that the steps belong to.
            first: The first step; all steps must have full cohorts only.
            stop: The step after the last.

        Returns:
            (samples of those steps,) int32 or int64, shared with the cache; do not change it.
        """
        return self._steps.get_once(
            (*deal.name, first, stop), lambda: self._join(deal, first, stop)
        )

    def _join(self, deal: LaneDeal, first: int, stop: int) -> _Ids:
        cohorts = deal.cohorts
        together = max(_BLOCK_SAMPLES // (cohorts.slices * cohorts.groups), 1)
        found = np.empty((stop - first, cohorts.slices, cohorts.groups), self._dtype)
        # The oldest cohorts come first: they lie first in the layout.
        for part in reversed(range(cohorts.slices)):
            # A step takes the first slice of its own cohort, the second of the one before, ...
            start = first - part - cohorts.first
            end, at = start + stop - first, start
            while at < end:
                number, place = divmod(at, together)
                block = self._block(deal, number, together)
                count = min(end - at, together - place)
                rows = slice(at - start, at - start + count)
                found[rows, cohorts.slices - 1 - part] = block[part, place : place + count]
                at += count
        return found.ravel()

    def _block(self, deal: LaneDeal, number: int, together: int) -> _Ids:
        cohorts = deal.cohorts

        def make() -> _Ids:
            count = min(together, cohorts.count - number * together)
            size = cohorts.slices * cohorts.groups
            start = cohorts.offset + number * together * size
            ids = deal.ids_between(start, start + count * size).astype(self._dtype)
            starts = np.arange(count * cohorts.groups) * cohorts.slices
            members = members_of(deal.keys, deal.second_keys, start + starts, cohorts.slices)
            members += starts
            dealt: _Ids = ids.take(members)
            return dealt.reshape(cohorts.slices, count, cohorts.groups)

        return self._blocks.get_once((*deal.name, number), make)
