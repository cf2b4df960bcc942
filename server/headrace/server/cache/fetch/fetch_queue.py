"""The fetches of blocks into the cache, and their order.

Contract of a fetch:

1. A block has at most one fetch, which its dataset's table records; further requests join it.
2. Blocks that streams wait for come before prefetched ones; jobs take turns in both. Each store has
   its own queues.
3. A fetch waits in a queue until a thread takes it. The first of its readers to finish ends it
   with `end`, unless that reader failed and another one reads the block too. A fetch that nobody
   needs when its turn comes ends without a fetch.
4. Queued neighbours of a fetch are taken with it, no matter when they were asked for: together
   they cost the store little more than one. No thread takes more than its share of the queue,
   except for neighbours that were prefetched together, which stay together.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace.errors import HeadraceError
from headrace.server.cache.readers import Waiter
from headrace.server.cache.source import ABSENT, IN_FLIGHT, Source

_T = TypeVar("_T")
_ALONE = range(0)


class FairQueue(Generic[_T]):
    """A queue of items by job, from which jobs take turns; not thread-safe."""

    def __init__(self) -> None:
        self._lines: OrderedDict[int, deque[_T]] = OrderedDict()

    def put(self, thing: _T, *, job: int) -> None:
        """Add an item to the line of its job."""
        self._lines.setdefault(job, deque()).append(thing)

    def take(self) -> _T | None:
        """Return the next item of the job whose turn it is; None if the queue is empty."""
        if not self._lines:
            return None
        job, line = self._lines.popitem(last=False)
        thing = line.popleft()
        if line:
            self._lines[job] = line
        return thing


@dataclass(slots=True, eq=False)
class Fetch:
    """A block that is being fetched into the cache.

    Attributes:
        source: The dataset of the block.
        block: The ordinal of the block.
        owners: The streams that prefetch it.
        demands: The streams that wait for it.
        is_running: Whether a thread has started to fetch it.
        is_over: Whether the fetch has ended.
        readers: Number of threads that fetch it.
        together: The neighbours that were prefetched with it, including itself.
    """

    source: Source
    block: int
    owners: list[Waiter] = field(default_factory=list)
    demands: list[Waiter] = field(default_factory=list)
    is_running: bool = False
    is_over: bool = False
    readers: int = 0
    together: range = _ALONE

    @property
    def is_wanted(self) -> bool:
        """Whether a stream still needs the block."""
        return bool(self.demands) or any(not owner.gone for owner in self.owners)

    @property
    def job(self) -> int:
        """A job that needs the block."""
        return next((waiter.job for waiter in (*self.demands, *self.owners)), 0)

    def fail(self, error: HeadraceError) -> None:
        """Pass an error to the waiting streams."""
        for waiter in self.demands:
            waiter.fail(error)


class Fetches:
    """All fetches of a cache; not thread-safe."""

    def __init__(self) -> None:
        self._fetches: dict[tuple[int, int], Fetch] = {}
        self._urgent: dict[str, FairQueue[Fetch]] = defaultdict(FairQueue)
        self._ahead: dict[str, FairQueue[Fetch]] = defaultdict(FairQueue)
        self._waiting: Counter[str] = Counter()

    def all(self) -> list[Fetch]:
        """Return all fetches that have not ended."""
        return list(self._fetches.values())

    def of(self, source: Source, block: int) -> Fetch | None:
        """Return the fetch of a block, if there is one."""
        return self._fetches.get((source.index, block))

    def demand(self, source: Source, block: int, waiter: Waiter) -> bool:
        """Make a stream wait for a block that is not cached; return whether it needs a thread."""
        fetch = self.of(source, block) or self._add(source, block)
        fetch.demands.append(waiter)
        fetch.owners.append(waiter)
        if not fetch.is_running:
            self._urgent[source.store].put(fetch, job=waiter.job)
        return not fetch.is_running

    def ask(self, source: Source, block: int, waiter: Waiter, *, together: range = _ALONE) -> None:
        """Prefetch a block that is not cached.

        Args:
            source: The dataset of the block.
            block: The ordinal of the block.
            waiter: The stream that asks.
            together: The neighbours that are prefetched with it, including itself.
        """
        fetch = self.of(source, block)
        if fetch is None:
            fetch = self._add(source, block)
            self._ahead[source.store].put(fetch, job=waiter.job)
        fetch.owners.append(waiter)
        if len(together) > len(fetch.together):
            fetch.together = together

    def take(self, threads: int, *, store: str = "", urgent: bool | None = None) -> list[Fetch]:
        """Return the next fetch and its neighbours; the caller must end them.

        Args:
            threads: How many threads share the queue, so that no thread takes more than its share.
            store: The name of the store.
            urgent: True for fetches that streams wait for, False for the others, None for both.

        Returns:
            Fetches of one dataset, by block; empty if none waits.
        """
        lines = [] if urgent is False else [self._urgent[store]]
        lines += [] if urgent else [self._ahead[store]]
        for line in lines:
            while (fetch := line.take()) is not None:
                if fetch.is_running:
                    continue
                if not fetch.is_wanted:
                    # It may be in both queues; the other entry must not start it again.
                    self._begin(fetch)
                    self.end(fetch, ABSENT)
                    continue
                return self._with_neighbours(fetch, -(-self._waiting[store] // threads))
        return []

    def waiting(self, store: str) -> int:
        """Return how many fetches of a store wait for a thread."""
        return self._waiting[store]

    def _with_neighbours(self, fetch: Fetch, share: int) -> list[Fetch]:
        source, together = fetch.source, fetch.together
        is_run = len(together) > share
        limit = min(source.run_blocks, max(share, len(together)))
        run = [fetch]
        for step in (1, -1):
            block = fetch.block + step
            while (
                len(run) < limit
                and (block in together or not is_run)
                and (next_one := self._waiting_one(source, block))
            ):
                run.append(next_one)
                block += step
        for one in run:
            self._begin(one)
        return sorted(run, key=lambda one: one.block)

    def _waiting_one(self, source: Source, block: int) -> Fetch | None:
        fetch = self.of(source, block)
        is_free = fetch is not None and not fetch.is_running and fetch.is_wanted
        return fetch if is_free else None

    def _begin(self, fetch: Fetch) -> None:
        fetch.is_running = True
        fetch.readers = 1
        self._waiting[fetch.source.store] -= 1

    def end(self, fetch: Fetch, slot: int) -> None:
        """End a fetch whose block is in a slot now, or `ABSENT`."""
        fetch.is_over = True
        fetch.source.slot_of[fetch.block] = slot
        del self._fetches[fetch.source.index, fetch.block]

    def call_off(self, sources: Collection[Source], error: HeadraceError) -> None:
        """Fail all waits for blocks of datasets, and end their fetches that wait for a thread."""
        for fetch in self.all():
            if fetch.source not in sources:
                continue
            fetch.fail(error)
            fetch.demands.clear()
            fetch.owners.clear()
            if not fetch.is_running:
                # Its entry is still in a queue, and must not start it.
                self._begin(fetch)
                self.end(fetch, ABSENT)

    def has_any(self, source: Source) -> bool:
        """Return whether a block of a dataset is being fetched."""
        return any(fetch.source is source for fetch in self._fetches.values())

    def _add(self, source: Source, block: int) -> Fetch:
        fetch = Fetch(source, block)
        self._waiting[source.store] += 1
        self._fetches[source.index, block] = fetch
        source.slot_of[block] = IN_FLIGHT
        return fetch
