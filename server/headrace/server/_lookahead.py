"""Plan batches before they are needed, and ask for their blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from headrace.server._blocks import Blocks
from headrace.server._plan import Planned, PlannedBatch
from headrace.server._source import Waiter

# A plan holds some 30 bytes a sample; these bound what a stream keeps of them (arbitrary).
_MAX_PLANS = 64
_MAX_SAMPLES = 1 << 19

# Plans worked out for one taken while all goes well: enough to get ahead, not so many that a
# batch waits for them.
_STEADY_PLANS = 2

# A first batch that waits for more than this has the store for itself: nothing is asked for beside
# it. Some 50 ms of a fast store, so that little time is lost where it needs less.
_ALONE_BYTES = 32 << 20


_Entry: TypeAlias = tuple[Planned, int, int]
"""A plan, its samples, and the bytes that were asked for because of it."""


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
        self._entries: deque[_Entry] = deque()
        self._samples = 0
        self._asked_bytes = 0
        self._taken = 0
        self._first_bytes = 0

    def take(self) -> Planned | None:
        """Return the next plan, or None at the end of the stream."""
        self._first_bytes = 0
        self.advance(_STEADY_PLANS if self._taken else 1)
        if not self._entries:
            return None
        planned, samples, asked_bytes = self._entries.popleft()
        if not self._taken:
            self._first_bytes = asked_bytes
        self._taken += 1
        self._waiter.begin_batch()
        self._samples -= samples
        self._asked_bytes -= asked_bytes
        return planned

    def advance(self, count: int = _MAX_PLANS) -> None:
        """Plan up to ``count`` further batches, as far as the budget allows, but always one.

        None while a first batch waits for much.
        """
        if self._first_bytes > _ALONE_BYTES:
            return
        budget_bytes = self._budget_bytes()
        for _ in range(count):
            is_full = (
                self._asked_bytes >= budget_bytes
                or self._samples >= _MAX_SAMPLES
                or len(self._entries) >= _MAX_PLANS
            )
            if self._entries and is_full:
                return
            planned = next(self._plans, None)
            if planned is None:
                return
            self._add(planned)

    def _add(self, planned: Planned) -> None:
        samples = asked_bytes = 0
        self._waiter.plan_batch()
        if isinstance(planned, PlannedBatch):
            samples = planned.sample_ids.size
            asked = self._blocks.prefetch(planned.touched, self._waiter)
            if asked.size:
                asked_bytes = int(self._blocks.stored_bytes(asked).sum())
        self._entries.append((planned, samples, asked_bytes))
        self._samples += samples
        self._asked_bytes += asked_bytes
