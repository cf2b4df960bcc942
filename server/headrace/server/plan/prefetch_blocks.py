"""Plan batches before they are needed, and ask for their blocks."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from headrace.server.cache.source import Waiter
from headrace.server.cache.stream_blocks import Blocks
from headrace.server.plan.planned_batches import Planned, PlannedBatch, PlannedEnd

# A plan holds some 30 bytes a sample; these bound what a stream keeps of them (arbitrary).
_MAX_PLANS = 64
_MAX_SAMPLES = 1 << 17

# Plans worked out for one taken while all goes well: enough to get ahead, not so many that a
# batch waits for them.
_STEADY_PLANS = 2

# A first batch that waits for more than this has the store for itself: nothing is asked for beside
# it. Some 50 ms of a fast store, so that little time is lost where it needs less.
_ALONE_BYTES = 32 << 20


_Entry: TypeAlias = tuple[PlannedBatch | PlannedEnd, int, int]
"""A plan, its samples, and the bytes that were asked for because of it."""


# What a stream has for its plans and its tables without asking for it.
_FREE_BYTES = 4 << 20
_PLAN_BYTES = 32
# While a batch is planned it takes some arrays of each of its samples.
_PLANNING_BYTES = 200


def plan_bytes(sample_count: int) -> int:
    """Return the bytes that plans of batches of this size take, beyond what each stream has.

    Only batches of very many samples take any.
    """
    planned = min(_MAX_PLANS * sample_count, max(_MAX_SAMPLES, 2 * sample_count))
    return max(0, _PLAN_BYTES * planned + _PLANNING_BYTES * sample_count - _FREE_BYTES)


class Lookahead:
    """The plans of one stream, and the fetches that they call for.

    Not safe for several threads.

    Args:
        plans: What the stream sends.
        blocks: Fetches them.
        waiter: The stream in the cache.
        budget_bytes: Gives the greatest size of blocks to ask for ahead of need, as it is now.
    """

    def __init__(
        self,
        plans: Iterator[Planned],
        *,
        blocks: Blocks,
        waiter: Waiter,
        budget_bytes: Callable[[], int],
    ) -> None:
        self._plans = plans
        self._blocks = blocks
        self._waiter = waiter
        self._budget_bytes = budget_bytes
        self._unasked: deque[PlannedBatch] = deque()
        self._entries: deque[_Entry] = deque()
        self._samples = 0
        self._asked_bytes = 0
        self._taken = 0
        self._first_bytes = 0

    def take(self, most: int = 1) -> list[PlannedBatch] | PlannedEnd | None:
        """Return the next plan, or None at the end of the stream.

        Args:
            most: Batches to return; fewer if those that follow are not alike.
        """
        self._first_bytes = 0
        self.advance(_STEADY_PLANS * most if self._taken else 1)
        if not self._entries:
            return None
        planned, samples, asked_bytes = self._entries.popleft()
        if not self._taken:
            self._first_bytes = asked_bytes
        if isinstance(planned, PlannedEnd):
            self._took(1, 0, asked_bytes)
            return planned
        followers = self._followers(planned, most - 1) if most > 1 else []
        for _ in followers:
            asked_bytes += self._entries.popleft()[2]
        count = 1 + len(followers)
        self._took(count, samples * count, asked_bytes)
        return [planned, *followers]

    def advance(self, count: int = _MAX_PLANS) -> None:
        """Plan some ``count`` further batches, as far as the budget allows, but always one.

        None while a first batch waits for much.
        """
        if self._first_bytes > _ALONE_BYTES:
            return
        budget_bytes = self._budget_bytes()
        while count > 0:
            is_full = (
                self._asked_bytes >= budget_bytes
                or self._samples >= _MAX_SAMPLES
                or len(self._entries) >= _MAX_PLANS
            )
            if self._entries and is_full:
                return
            added = self._add_some()
            if not added:
                return
            count -= added

    def _followers(self, planned: PlannedBatch, most: int) -> list[PlannedBatch]:
        """Return batches that follow and are made with a first one, if all they need is there.

        Otherwise they wait, each by itself, and until then what they need must count as needed.
        """
        followers: list[PlannedBatch] = []
        for follower, _, _ in itertools.islice(self._entries, most):
            if isinstance(follower, PlannedEnd) or not planned.is_alike(follower):
                break
            followers.append(follower)
        if followers:
            found = planned.found.up_to(followers[-1].found)
            if not self._blocks.is_cached(found.touched).all():
                return []
        return followers

    def _took(self, count: int, samples: int, asked_bytes: int) -> None:
        self._taken += count
        self._waiter.begin_batch(count)
        self._samples -= samples
        self._asked_bytes -= asked_bytes

    def _add_some(self) -> int:
        """Ask for what a next batch needs, or what several need that is all there."""
        if not self._unasked:
            planned = next(self._plans, None)
            if planned is None:
                return 0
            if isinstance(planned, PlannedEnd):
                self._waiter.plan_batch()
                self._entries.append((planned, 0, 0))
                return 1
            if len(planned) > 1 and self._are_there(planned):
                return len(planned)
            self._unasked.extend(planned)
        planned_batch = self._unasked.popleft()
        self._waiter.plan_batch()
        asked_bytes = 0
        asked = self._blocks.prefetch(planned_batch.found.touched, self._waiter)
        if asked.size:
            asked_bytes = int(self._blocks.stored_bytes(asked).sum())
        self._entries.append((planned_batch, planned_batch.sample_count, asked_bytes))
        self._samples += planned_batch.sample_count
        self._asked_bytes += asked_bytes
        return 1

    def _are_there(self, batches: list[PlannedBatch]) -> bool:
        """Add batches if none of them has to be fetched for; their blocks count as the last's."""
        if batches[0].found.together is not batches[-1].found.together:
            return False
        found = batches[0].found.up_to(batches[-1].found)
        if not self._blocks.is_cached(found.touched).all():
            return False
        self._waiter.plan_batch(len(batches))
        # One that goes in between is fetched again.
        self._blocks.prefetch(found.touched, self._waiter)
        self._entries.extend([(batch, batch.sample_count, 0) for batch in batches])
        self._samples += found.end - found.begin
        return True
