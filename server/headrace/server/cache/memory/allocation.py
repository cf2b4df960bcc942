"""The memory of a cache: how blocks are placed, and how new ones get room.

Contract:

1. Blocks never take more than the budget: each lies in an extent of one arena of that size.
2. `take` waits until a block can be evicted, at most `_ROOM_TIMEOUT_S`. Blocks within a job's part
   of the cache are spared, at most for `_SPARING_S`, until the reads and writes that ran at the
   start have ended. One caller at a time looks for room; the others wait in line.
3. An extent belongs to its taker until `settle` makes it a cached block or `give_back` frees it.
4. All methods require the cache's lock; `take` releases it while it waits.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from headrace.errors import ConfigurationError, DrainingError, StoreUnavailableError
from headrace.server.cache.fetch.fetch_queue import Fetch
from headrace.server.cache.memory.arena import Arena, ExtentAllocator, Memory, map_memory
from headrace.server.cache.memory.eviction import Victims
from headrace.server.cache.memory.shared_memory import barrier
from headrace.server.cache.memory.slot_table import SlotTable
from headrace.server.cache.readers import Readers
from headrace.server.cache.source import ABSENT, Source

# How long a fetched block may wait for room. Pins last only for one copy, so this is exceeded only
# if the machine has nearly stopped.
_ROOM_TIMEOUT_S = 60.0

# How long it waits for readers before it evicts from a job's part of the cache. A copy takes
# milliseconds; the rest is for machines that are short of processors.
_SPARING_S = 1.0

# How often it checks whether workers still read a block (arbitrary; a copy takes milliseconds).
_WORKER_POLL_S = 0.005


class BlockSpace:
    """The memory of one cache.

    Attributes:
        memory: The memory of the blocks.
        closed: Whether the cache was closed.

    Args:
        lock: The cache's lock.
        budget_bytes: Size of the memory.
        arena: The memory; None for private memory of this process.
        slots: The table of cached blocks; also an attribute.
        readers: The streams that read them.
        sources: The current datasets of the cache, by index.
    """

    def __init__(
        self,
        lock: threading.Lock,
        budget_bytes: int,
        *,
        arena: Arena | None,
        slots: SlotTable,
        readers: Readers,
        sources: Mapping[int, Source],
    ) -> None:
        # Notifies callers that wait in line for room; see `take`.
        self._line = threading.Condition(lock)
        self._is_taking = False
        self.memory = map_memory(budget_bytes) if arena is None else arena.memory
        self.slots = slots
        self.readers = readers
        self._arena = arena
        self._extents = ExtentAllocator(budget_bytes)
        self._victims = Victims(self.slots, budget_bytes=budget_bytes)
        self._sources = sources
        self.closed = False
        # Number of extents that are being written.
        self._landing = 0
        # Number of extents that were written, or given back.
        self._landed = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of the memory that hold blocks."""
        return self._extents.used

    @property
    def _ended(self) -> int:
        """How many reads and writes of blocks have ended so far."""
        return self.readers.ended + self._landed

    def check_open(self) -> None:
        """Raise if the cache was closed.

        Raises:
            DrainingError: The cache was closed.
        """
        if self.closed:
            raise closed_error()

    def close(self) -> None:
        """End all waits for room."""
        self.closed = True
        self.readers.freed.notify_all()
        self._line.notify_all()

    def give_up(self) -> Memory:
        """Let the memory go, once nothing writes into it, and return what is left: none.

        Whoever reads it keeps it until then. What is closed may stay in a circle of references for
        long, and would keep all of it.
        """
        self.memory = _Gone()
        return self.memory

    def take(self, length: int) -> int:
        """Take ``length`` bytes, evicting blocks if needed; return where they start.

        Raises:
            ConfigurationError: The memory is smaller than that.
            DrainingError: The cache was closed meanwhile.
            StoreUnavailableError: No block could be evicted in time.
        """
        if length > self._extents.size:
            raise ConfigurationError(
                f"a block of {length} bytes does not fit into a cache of {self._extents.size}; "
                "start the server with a larger cache_bytes"
            )
        began = time.monotonic()
        # One at a time: each attempt ranks all blocks, and freed memory serves one caller first.
        self._line.wait_for(lambda: not self._is_taking or self.closed, _ROOM_TIMEOUT_S)
        self.check_open()
        if self._is_taking:
            raise _no_room_error()
        self._is_taking = True
        try:
            start = self._take_next(length, began)
        finally:
            self._is_taking = False
            self._line.notify()
        self._landing += 1
        return start

    def take_more(self, lengths: Sequence[int]) -> list[int]:
        """Take extents as far as there is room now; return where they start.

        Whoever takes several at a time may not wait for the second while it holds the first: all
        might wait for each other.
        """
        starts: list[int] = []
        for length in lengths:
            start = self._take_now(length)
            if start is None:
                break
            self._landing += 1
            starts.append(start)
        return starts

    def _take_now(self, length: int) -> int | None:
        if self._is_taking or length > self._extents.size:
            return None
        while (start := self._free_extent(length)) is None:
            victim = self._victims.take(self.readers.streams, sparing=True)
            if victim is None:
                return None
            self.evict(victim)
        return start

    def _take_next(self, length: int, began: float) -> int:
        hopeless = math.inf
        while (start := self._free_extent(length)) is None:
            self.check_open()
            waited_s = time.monotonic() - began
            sparing = (
                waited_s < _SPARING_S
                and self._ended < hopeless
                and (self._landing > 0 or self.slots.is_read)
            )
            victim = self._victims.take(self.readers.streams, sparing=sparing)
            if victim is not None:
                self.evict(victim)
            elif waited_s >= _ROOM_TIMEOUT_S:
                raise _no_room_error()
            else:
                # Waits only for the reads and writes that run now. If streams need more memory than
                # there is, others have started when these end, so waiting until nobody reads would
                # never end.
                hopeless = min(hopeless, self._ended + self._landing + self.slots.pin_count)
                left_s = (_SPARING_S if sparing else _ROOM_TIMEOUT_S) - waited_s
                # Workers do not notify when they have read a block.
                self.readers.freed.wait(
                    min(left_s, _WORKER_POLL_S) if self.slots.worker_tables else left_s
                )
        return start

    def give_back(self, start: int, length: int) -> None:
        """Free an extent that holds no block."""
        self._landing -= 1
        self._landed += 1
        self._extents.give(start, length)
        self.readers.freed.notify_all()

    def settle(self, fetch: Fetch, start: int, length: int, *, bases: tuple[int, ...]) -> int:
        """Add the block in an extent; return its slot, pinned for each stream that waits for it."""
        self._landing -= 1
        self._landed += 1
        slot = self.slots.add(
            source=fetch.source.index,
            block=fetch.block,
            offset=start,
            length=length,
            owner=fetch.job,
        )
        self.readers.filling.is_filling = 2 * self._extents.used > self._extents.size
        fetch.source.set_bases(slot, bases, capacity=self.slots.capacity)
        self.slots.pins[slot] = len(fetch.demands)
        if self._arena is not None:
            barrier()
            self._arena.note_filling(is_filling=self.readers.filling.is_filling)
        self.readers.freed.notify_all()
        return slot

    def evict(self, slot: int) -> bool:
        """Evict a block, unless a worker has just started to read it; return whether it was."""
        source, block = self._sources[self.slots.source[slot]], self.slots.block[slot]
        source.slot_of[block] = ABSENT
        if self.slots.worker_tables:
            barrier()
            if self.slots.is_pinned(slot):
                source.slot_of[block] = slot
                return False
        if self._arena is not None:
            self._arena.note_eviction(self.slots.capacity)
        self._extents.give(int(self.slots.offset[slot]), int(self.slots.length[slot]))
        self.slots.remove(slot)
        return True

    def evict_all(self, source: Source) -> bool:
        """Evict the unread blocks of a dataset; return whether none is left."""
        held = np.flatnonzero(self.slots.source == source.index)
        # A list, because every block must be tried.
        gone = [self.evict(slot) for slot in held.tolist() if not self.slots.is_pinned(slot)]
        return sum(gone) == held.size

    def _free_extent(self, length: int) -> int | None:
        return None if self.slots.is_full(self._landing) else self._extents.take(length)


def _no_room_error() -> StoreUnavailableError:
    return StoreUnavailableError("the cache had no room for a block; try again")


class _Gone(Memory):
    """The memory of a closed cache: a stream that still makes a batch is told that it is over."""

    __slots__ = ()

    def __init__(self) -> None:
        """Have none of the attributes, so that each is asked for below."""

    def __getattr__(self, name: str) -> NoReturn:
        del name
        raise closed_error()


def closed_error() -> DrainingError:
    """Return the error for streams that wait when the cache is closed."""
    return DrainingError("the server has shut down; try another")
