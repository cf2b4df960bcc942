"""Choose the block to evict: the one that is needed last, within fair shares.

1. Streams announce what they will read, batch after batch, as far as they have planned. Among
   announced blocks, the one whose next read is farthest away is evicted first; this is estimated
   from the recent speed of each stream.
2. Blocks that no stream has announced are evicted before them, the least recently read first.
3. Each job with an open stream owns an equal part of the cache. Blocks within a job's part are
   evicted after all blocks outside any part, so no job, however large, can evict the blocks of
   another that stays within its part. Any job may use what others leave free.
4. Victims are worked out for several evictions at a time. One that was read, asked for or pinned
   meanwhile is passed over. If all of them are, victims are ranked again, and one of these goes
   even if it was asked for: streams ask without the cache's lock, also during the ranking, and
   otherwise whoever waits for room would not be woken.

If the code differs, the code is wrong.

Source: 1 is Belady's rule ("A study of replacement algorithms for a virtual-storage computer",
1966), applied to the known part of the future.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.memory.slot_table import SlotTable
from headrace.server.cache.readers import Waiter
from headrace.server.cache.source import ABSENT, Slots

# A sixteenth of the blocks is chosen in one ranking, so that each eviction costs as much as looking
# at sixteen blocks.
_PART = 16

# Most announced reads in one ranking: about 10 ms of work. Later reads count as unknown.
_MAX_USES = 1 << 20

_NEVER = np.inf

# How late a batch of a worker's stream may still be read (arbitrary: several periods of writing
# workers' tables).
_LATE_S = 1.0
# The greatest age of a ranking that used their tables (arbitrary: they are written this often).
_DESK_PERIOD_S = 0.05


class Victims:
    """Chooses the blocks to evict; not thread-safe.

    Args:
        table: The table of cached blocks.
        budget_bytes: The most bytes of all blocks together.
    """

    def __init__(self, table: SlotTable, *, budget_bytes: int) -> None:
        self._table = table
        # One part belongs to no job, so that in a full cache some job exceeds its own.
        self._shared_bytes = budget_bytes - budget_bytes // _PART
        self._ranked: list[tuple[int, bool, bool]] = []
        self._ranked_at = -1
        self._last_use = np.empty(0, np.int64)

    def take(self, streams: Collection[Waiter], *, sparing: bool = False) -> int | None:
        """Return the slot to evict; None if every block is being read.

        Args:
            streams: The open streams.
            sparing: Whether to return None also if all evictable blocks lie within a job's part.
        """
        # Streams of workers do not report batches; they write their tables periodically.
        taken = sum([waiter.taken for waiter in streams])
        if self._table.worker_tables:
            taken = int(time.monotonic() / _DESK_PERIOD_S)
        slot = self._next_ranked(may_be_owned=False, may_be_needed=taken == self._ranked_at)
        if slot is None:
            self._ranked_at = taken
            self._rank(streams)
            slot = self._first_of_fresh(may_be_owned=not sparing)
        return slot

    def _first_of_fresh(self, *, may_be_owned: bool) -> int | None:
        """Return the slot to evict after a new ranking."""
        fresh = self._ranked[::-1]
        slot = self._next_ranked(may_be_owned=may_be_owned, may_be_needed=True)
        if slot is not None:
            return slot
        return next(
            (
                slot
                for slot, is_owned, _ in fresh
                if (may_be_owned or not is_owned) and not self._table.is_pinned(slot)
            ),
            None,
        )

    def _next_ranked(self, *, may_be_owned: bool, may_be_needed: bool) -> int | None:
        while self._ranked:
            slot, is_owned, is_needed = self._ranked.pop()
            if not self._is_as_ranked(slot):
                continue
            if (may_be_owned or not is_owned) and (may_be_needed or not is_needed):
                return slot
            # Blocks outside any part, or without a need, may have been unpinned since.
            self._ranked.clear()
        return None

    def _is_as_ranked(self, slot: int) -> bool:
        table = self._table
        return (
            bool(table.source[slot] >= 0)
            and bool(table.use_of(slot) == self._last_use[slot])
            and bool(table.asked[slot] != table.ranking)
            and not table.is_pinned(slot)
        )

    def _rank(self, streams: Collection[Waiter]) -> None:
        table = self._table
        table.ranking += 1
        self._last_use = table.uses()
        next_use = self._next_uses(streams)
        slots = table.unpinned()
        # `lexsort` sorts by its last key first.
        order = np.lexsort((self._last_use[slots], -next_use[slots]))
        slots = slots[order]
        owned = self._is_owned(slots, streams)
        order = np.argsort(owned, kind="stable")[: max(1, slots.size // _PART)][::-1]
        needed = np.isfinite(next_use[slots[order]])
        self._ranked = list(
            zip(slots[order].tolist(), owned[order].tolist(), needed.tolist(), strict=True)
        )

    def _next_uses(self, streams: Collection[Waiter]) -> NDArray[np.float64]:
        """Return the seconds until each block's next read, and assign it to the reader's job."""
        table = self._table
        soonest, owner = next_uses(table.capacity, streams)
        now = time.monotonic()
        for each in table.worker_tables:
            theirs = each.next_use[: table.capacity] - now
            # A late block is needed now; the need of a very late one is unknown.
            theirs[theirs < -_LATE_S] = _NEVER
            np.maximum(theirs, 0.0, out=theirs)
            sooner = theirs < soonest
            soonest[sooner] = theirs[sooner]
            owner[sooner] = each.owner[: table.capacity][sooner]
        known = soonest < _NEVER
        table.owner[known] = owner[known]
        return soonest

    def _is_owned(self, slots: NDArray[np.int64], streams: Iterable[Waiter]) -> NDArray[np.bool_]:
        """Return which slots, given in the order of eviction, lie within a job's part."""
        table = self._table
        owned = np.zeros(slots.size, np.bool_)
        jobs = {waiter.job for waiter in streams}
        if len(jobs) < 2:  # noqa: PLR2004 - a single job owns everything, so nothing
            return owned
        part_bytes = self._shared_bytes // len(jobs)
        for job in jobs:
            excess = max(0, table.bytes_of(job) - part_bytes)
            mine = np.flatnonzero(table.owner[slots] == job)
            lengths = table.length[slots[mine]]
            owned[mine] = np.cumsum(lengths) - lengths >= excess
        return owned


def next_uses(
    capacity: int, streams: Collection[Waiter]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the seconds until the next read of each slot's block, and the job that reads it.

    Args:
        capacity: Number of slots.
        streams: The open streams.

    Returns:
        Two arrays of ``(capacity,)``; infinity and 0 if unknown.
    """
    soonest = np.full(capacity, _NEVER)
    owner = np.zeros(capacity, np.int64)
    each = _MAX_USES // max(1, len(streams))
    for waiter in streams:
        mine = np.full(capacity, _NEVER)
        for slots, ahead in _uses(waiter, each):
            is_cached = (slots > ABSENT) & (slots < capacity)
            np.minimum.at(mine, slots[is_cached], ahead[is_cached])
        sooner = mine < soonest
        soonest[sooner] = mine[sooner]
        owner[sooner] = waiter.job
    return soonest, owner


def _uses(waiter: Waiter, limit: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
    """Yield the slots of blocks that a stream will read, and when, a dataset at a time."""
    plans = waiter.plan()
    if expected := waiter.expected():
        plans.append(expected)
    parts: dict[Slots, list[NDArray[np.int64]]] = {}
    distances: dict[Slots, list[int]] = {}
    count = 0
    for distance, batch in enumerate(plans):
        for source, blocks in batch:
            parts.setdefault(source, []).append(blocks)
            distances.setdefault(source, []).append(distance)
            count += blocks.size
        if count >= limit:
            break
    # A stream has hundreds of batches ahead, of few blocks each: not a call of NumPy for each.
    for source, blocks_of in parts.items():
        sizes = [blocks.size for blocks in blocks_of]
        ahead = np.array(distances[source]) * waiter.period_s
        yield source.slots(np.concatenate(blocks_of)), np.repeat(ahead, sizes)
