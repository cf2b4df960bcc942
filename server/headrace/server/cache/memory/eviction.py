"""Choose the block to evict: the one that is needed last, within fair shares.

1. Streams say what they will read, batch after batch, as far as they have planned. Among blocks
   that some stream will read, the one whose next reading is farthest away goes first; how far is
   guessed from how fast each stream has been so far.
2. Blocks that no stream has announced go before them, the least recently read first.
3. Each job with an open stream owns an equal part of the cache. Blocks within a job's part go after
   all blocks outside of any part, so no job, however large, takes the blocks of another that keeps
   within its part. Anyone may use what a job leaves free.
4. Victims are worked out for several evictions at a time. One that was read, asked for or pinned
   meanwhile is passed over. If all of them are, victims are ranked again, and one of these goes
   even if it was asked for: streams ask without the cache's lock, also during the ranking, and
   otherwise whoever waits for room would not be woken.

If the code differs, the code is wrong.

Source: 1 is Belady's rule ("A study of replacement algorithms for a virtual-storage computer",
1966) over the known part of the future.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.memory.slot_table import SlotTable
from headrace.server.cache.source import ABSENT, Slots, Waiter

# Evictions worked out together: a sixteenth of the blocks, so that ranking all of them costs each
# eviction as much as looking at sixteen.
_PART = 16

# Announced uses looked at in one ranking: some 10 ms of work. Beyond it the future is unknown.
_MAX_USES = 1 << 20

_NEVER = np.inf

# How long after its time a batch of a worker's stream may still be read (arbitrary: some periods
# of writing desks).
_LATE_S = 1.0
# How old a ranking may be that was made by desks (arbitrary: as often as they are written).
_DESK_PERIOD_S = 0.05


class Victims:
    """Chooses what to evict. Not safe for several threads.

    Args:
        table: The cached blocks.
        budget_bytes: What all of them together may take.
    """

    def __init__(self, table: SlotTable, *, budget_bytes: int) -> None:
        self._table = table
        # The last part is nobody's, so that a full cache always has a job outside of its own.
        self._shared_bytes = budget_bytes - budget_bytes // _PART
        self._ranked: list[tuple[int, bool, bool]] = []
        self._ranked_at = -1
        self._last_use = np.empty(0, np.int64)

    def take(self, streams: Collection[Waiter], *, sparing: bool = False) -> int | None:
        """Return the slot to evict; None if every block is being read.

        Args:
            streams: Those that are open.
            sparing: Return None also if all that could go lies within a job's part.
        """
        # Streams of workers do not say what they have taken, but write their desks now and then.
        taken = sum([waiter.taken for waiter in streams])
        if self._table.desks:
            taken = int(time.monotonic() / _DESK_PERIOD_S)
        slot = self._next_ranked(may_be_owned=False, may_be_needed=taken == self._ranked_at)
        if slot is None:
            self._ranked_at = taken
            self._rank(streams)
            slot = self._first_of_fresh(may_be_owned=not sparing)
        return slot

    def _first_of_fresh(self, *, may_be_owned: bool) -> int | None:
        """Return the slot to evict of those that have just been ranked."""
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
            # What lies outside of any part, or nobody needs, may have become free since.
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
        """Return in how many seconds each block is read next; the reader's job owns it then."""
        table = self._table
        soonest, owner = next_uses(table.capacity, streams)
        now = time.monotonic()
        for desk in table.desks:
            theirs = desk.next_use[: table.capacity] - now
            # A late block is needed now; for a very late one nothing is known.
            theirs[theirs < -_LATE_S] = _NEVER
            np.maximum(theirs, 0.0, out=theirs)
            sooner = theirs < soonest
            soonest[sooner] = theirs[sooner]
            owner[sooner] = desk.owner[: table.capacity][sooner]
        known = soonest < _NEVER
        table.owner[known] = owner[known]
        return soonest

    def _is_owned(self, slots: NDArray[np.int64], streams: Iterable[Waiter]) -> NDArray[np.bool_]:
        """Return which slots, given in the order in which they would go, lie in a job's part."""
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
    """Return in how many seconds each slot's block is read next, and by which job.

    Args:
        capacity: How many slots there are.
        streams: Those that are open.

    Returns:
        ``(capacity,)`` each; infinity and 0 where it is not known.
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
