"""The table of cached blocks."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.memory.shared_memory import WorkerTable
from headrace.server.kernels.loader import LOOPS

_FIRST_CAPACITY = 256


class SlotTable:
    """The table of cached blocks, with a slot for each. Slot 0 stays empty: it means "not cached".

    Not thread-safe, except for `asked`, which any thread may write. Arrays are ``(capacity,)``.

    Attributes:
        source: The index of each block's dataset; -1 in a free slot.
        block: The ordinal of the block.
        pins: How many readers the block has now.
        last_use: The time of the last read, in nanoseconds of the monotonic clock.
        offset: Where the block starts in the arena.
        length: Bytes of the block.
        owner: The job that read the block last, or will read it next.
        asked: The last ranking after which a stream announced a read of the block.
        ranking: How many times the blocks have been ranked for eviction.
        worker_tables: The tables of workers, which also pin blocks.

    Args:
        limit: The most blocks; None for any number.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.worker_tables: tuple[WorkerTable, ...] = ()
        self.source = np.full(_FIRST_CAPACITY, -1, np.int32)
        self.block = np.zeros(_FIRST_CAPACITY, np.int64)
        self.pins = np.zeros(_FIRST_CAPACITY, np.int32)
        self.last_use = np.zeros(_FIRST_CAPACITY, np.int64)
        self.offset = np.zeros(_FIRST_CAPACITY, np.int64)
        self.length = np.zeros(_FIRST_CAPACITY, np.int64)
        self.owner = np.zeros(_FIRST_CAPACITY, np.int64)
        self.asked = np.zeros(_FIRST_CAPACITY, np.int64)
        self.ranking = 0
        self.count = 0
        self._free = list(range(_FIRST_CAPACITY - 1, 0, -1))

    @property
    def capacity(self) -> int:
        """The current length of the arrays, one more than the greatest possible slot."""
        return self.source.size

    def add(self, *, source: int, block: int, offset: int, length: int, owner: int = 0) -> int:
        """Add a block that is in the arena; return its slot."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.source[slot], self.block[slot] = source, block
        self.offset[slot], self.length[slot] = offset, length
        self.last_use[slot] = time.monotonic_ns()
        self.owner[slot] = owner
        self.asked[slot] = self.ranking
        for each in self.worker_tables:
            # Entries of the previous block in this slot.
            each.last_use[slot], each.next_use[slot] = 0, 0.0
        self.count += 1
        return slot

    def remove(self, slot: int) -> None:
        """Remove the block of a slot."""
        assert self.pins[slot] == 0
        self.source[slot] = -1
        self._free.append(slot)
        self.count -= 1

    def pin(self, slots: NDArray[np.integer]) -> None:
        """Pin the blocks in distinct slots, and record the read."""
        now = time.monotonic_ns()
        LOOPS.pin(self.pins, self.last_use, slots.astype(np.int32, copy=False), now)

    def pin_all(
        self, slot_of: NDArray[np.int32], blocks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], int]:
        """Pin distinct blocks: all of them, or none if one is not cached.

        Args:
            slot_of: The slot of each block of the dataset; 0 or less if it is not cached.
            blocks: The blocks to pin.

        Returns:
            The slots of the blocks, and how many blocks are cached.
        """
        found = np.empty(blocks.size, np.int32)
        now = time.monotonic_ns()
        return found, LOOPS.pin_all(slot_of, blocks, self.pins, self.last_use, now, found)

    def pin_found(self, slots: NDArray[np.int32]) -> int:
        """Pin the blocks in distinct slots, or none if one is missing; return how many exist."""
        hits = int(np.count_nonzero(slots > 0))
        if hits == slots.size:
            self.pin(slots)
        return hits

    def ask(self, slot_of: NDArray[np.int32], blocks: NDArray[np.int64]) -> bool:
        """Record that blocks will be read, if all are cached; return whether they are."""
        return bool(LOOPS.ask(slot_of, blocks, self.asked, self.ranking))

    def ask_found(self, slots: NDArray[np.int32]) -> bool:
        """Record that the blocks in these slots will be read, as `ask` does."""
        if slots.size and int(slots.min()) <= 0:
            return False
        self.asked[slots] = self.ranking
        return True

    def unpin(self, slots: NDArray[np.integer]) -> None:
        """Undo a `pin`."""
        LOOPS.unpin(self.pins, slots.astype(np.int32, copy=False))

    def is_pinned(self, slot: int) -> bool:
        """Return whether the block has a reader."""
        return bool(self.pins[slot] > 0) or any(each.pins[slot] > 0 for each in self.worker_tables)

    def is_full(self, coming: int) -> bool:
        """Return whether no slot would be left after ``coming`` more blocks."""
        return self.limit is not None and self.count + coming + 1 >= self.limit

    @property
    def pin_count(self) -> int:
        """Number of current reads of blocks."""
        theirs = [int(each.pins[: self.capacity].sum()) for each in self.worker_tables]
        return int(self.pins.sum()) + sum(theirs)

    @property
    def is_read(self) -> bool:
        """Whether any block has a reader."""
        theirs = (each.pins[: self.capacity].any() for each in self.worker_tables)
        return bool(self.pins.any()) or any(theirs)

    def unpinned(self) -> NDArray[np.int64]:
        """Return the slots of all blocks without a reader."""
        is_free = (self.source >= 0) & (self.pins == 0)
        for each in self.worker_tables:
            is_free &= each.pins[: self.capacity] == 0
        return np.flatnonzero(is_free)

    def uses(self) -> NDArray[np.int64]:
        """Return the time of the last read of each block, workers included."""
        uses = self.last_use.copy()
        for each in self.worker_tables:
            np.maximum(uses, each.last_use[: self.capacity], out=uses)
        return uses

    def use_of(self, slot: int) -> int:
        """Return the time of the last read of a block, workers included."""
        theirs = (each.last_use[slot] for each in self.worker_tables)
        return int(max(self.last_use[slot], *theirs, 0))

    def bytes_of(self, job: int) -> int:
        """Return the bytes of the blocks of a job."""
        return int(self.length[(self.source >= 0) & (self.owner == job)].sum())

    def _grow(self) -> None:
        old = self.capacity
        for name in ("source", "block", "pins", "last_use", "offset", "length", "owner", "asked"):
            column = getattr(self, name)
            grown = np.zeros(2 * old, column.dtype)
            grown[:old] = column
            setattr(self, name, grown)
        self.source[old:] = -1
        self._free = list(range(2 * old - 1, old - 1, -1))
