"""The table of cached blocks, and which of them goes first."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_FIRST_CAPACITY = 256


class EvictionPolicy(Protocol):
    """Chooses the block that goes when there is no room."""

    def victim(self, slots: NDArray[np.int64], last_use: NDArray[np.int64]) -> int:
        """Return one of the slots.

        Args:
            slots: ``(candidates,)``, never empty: the blocks that nobody reads just now.
            last_use: ``(candidates,)``: when each was last read, in leases since the start.
        """


class LeastRecentlyUsed:
    """Evicts the block that was not read for longest."""

    def victim(self, slots: NDArray[np.int64], last_use: NDArray[np.int64]) -> int:
        """Return the slot of the oldest use."""
        return int(slots[np.argmin(last_use)])


class SlotTable:
    """Who lies where in the arena, one slot a block. Slot 0 stays empty: it means "not cached".

    Not safe for several threads.
    """

    def __init__(self) -> None:
        self.source = np.full(_FIRST_CAPACITY, -1, np.int32)
        self.block = np.zeros(_FIRST_CAPACITY, np.int64)
        self.pins = np.zeros(_FIRST_CAPACITY, np.int32)
        self.last_use = np.zeros(_FIRST_CAPACITY, np.int64)
        self.begin = np.zeros(_FIRST_CAPACITY, np.int64)
        self.length = np.zeros(_FIRST_CAPACITY, np.int64)
        self.count = 0
        self._clock = 0
        self._free = list(range(_FIRST_CAPACITY - 1, 0, -1))

    @property
    def capacity(self) -> int:
        """Return one more than the greatest slot there may be now."""
        return self.source.size

    def add(self, *, source: int, block: int, begin: int, length: int) -> int:
        """Return the slot of a block that now lies in the arena."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.source[slot], self.block[slot] = source, block
        self.begin[slot], self.length[slot] = begin, length
        self.last_use[slot] = self._clock
        self.count += 1
        return slot

    def remove(self, slot: int) -> None:
        """Forget the block of a slot."""
        assert self.pins[slot] == 0
        self.source[slot] = -1
        self._free.append(slot)
        self.count -= 1

    def pin(self, slots: NDArray[np.integer]) -> None:
        """Keep the blocks of distinct slots, and note their use."""
        self._clock += 1
        self.pins[slots] += 1
        self.last_use[slots] = self._clock

    def unpin(self, slots: NDArray[np.integer]) -> None:
        """Give back what `pin` took."""
        self.pins[slots] -= 1

    def victim(self, policy: EvictionPolicy) -> int | None:
        """Return the slot to evict; None if every block is being read."""
        candidates = np.flatnonzero((self.source >= 0) & (self.pins == 0))
        if not candidates.size:
            return None
        return policy.victim(candidates, self.last_use[candidates])

    def _grow(self) -> None:
        old = self.capacity
        for name in ("source", "block", "pins", "last_use", "begin", "length"):
            column = getattr(self, name)
            grown = np.zeros(2 * old, column.dtype)
            grown[:old] = column
            setattr(self, name, grown)
        self.source[old:] = -1
        self._free = list(range(2 * old - 1, old - 1, -1))
