"""Blocks that are being fetched into the cache ("flights"), and the order of their fetches.

Contract of a flight:

1. A block has at most one flight, which its dataset's table records; further requests join it.
2. Blocks that streams wait for come before prefetched ones; jobs take turns in both. Each store has
   its own queues.
3. A flight waits in a queue until a thread takes it. The first of its readers to finish ends it
   with `land`, unless that reader failed and another one reads the block too. A flight that nobody
   needs when its turn comes ends without a fetch.
4. Queued neighbours of a flight are taken with it, no matter when they were asked for: together
   they cost the store little more than one. No thread takes more than its share of the queue,
   except for neighbours that were prefetched together, which stay together.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.server.cache.fetch.fair_queue import FairQueue
from headrace.server.cache.readers import Waiter
from headrace.server.cache.source import ABSENT, IN_FLIGHT, Source

_ALONE = range(0)


@dataclass(slots=True, eq=False)
class Flight:
    """A block that is being fetched into the cache.

    Attributes:
        source: The dataset of the block.
        block: The ordinal of the block.
        owners: The streams that prefetch it.
        demands: The streams that wait for it.
        is_running: Whether a thread has started to fetch it.
        is_over: Whether the flight has ended.
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


class Flights:
    """All flights of a cache; not thread-safe."""

    def __init__(self) -> None:
        self._flights: dict[tuple[int, int], Flight] = {}
        self._urgent: dict[str, FairQueue[Flight]] = defaultdict(FairQueue)
        self._ahead: dict[str, FairQueue[Flight]] = defaultdict(FairQueue)
        self._waiting: Counter[str] = Counter()

    def all(self) -> list[Flight]:
        """Return all flights that have not ended."""
        return list(self._flights.values())

    def of(self, source: Source, block: int) -> Flight | None:
        """Return the flight of a block, if there is one."""
        return self._flights.get((source.index, block))

    def demand(self, source: Source, block: int, waiter: Waiter) -> bool:
        """Make a stream wait for a block that is not cached; return whether it needs a thread."""
        flight = self.of(source, block) or self._depart(source, block)
        flight.demands.append(waiter)
        flight.owners.append(waiter)
        if not flight.is_running:
            self._urgent[source.store].put(flight, job=waiter.job)
        return not flight.is_running

    def ask(self, source: Source, block: int, waiter: Waiter, *, together: range = _ALONE) -> None:
        """Prefetch a block that is not cached.

        Args:
            source: The dataset of the block.
            block: The ordinal of the block.
            waiter: The stream that asks.
            together: The neighbours that are prefetched with it, including itself.
        """
        flight = self.of(source, block)
        if flight is None:
            flight = self._depart(source, block)
            self._ahead[source.store].put(flight, job=waiter.job)
        flight.owners.append(waiter)
        if len(together) > len(flight.together):
            flight.together = together

    def take(self, threads: int, *, store: str = "", urgent: bool | None = None) -> list[Flight]:
        """Return the next flight and its neighbours; the caller must end them.

        Args:
            threads: How many threads share the queue, so that no thread takes more than its share.
            store: The name of the store.
            urgent: True for flights that streams wait for, False for the others, None for both.

        Returns:
            Flights of one dataset, by block; empty if none waits.
        """
        lines = [] if urgent is False else [self._urgent[store]]
        lines += [] if urgent else [self._ahead[store]]
        for line in lines:
            while (flight := line.take()) is not None:
                if flight.is_running:
                    continue
                if not flight.is_wanted:
                    # It may be in both queues; the other entry must not start it again.
                    self._begin(flight)
                    self.land(flight, ABSENT)
                    continue
                return self._with_neighbours(flight, -(-self._waiting[store] // threads))
        return []

    def waiting(self, store: str) -> int:
        """Return how many flights of a store wait for a thread."""
        return self._waiting[store]

    def _with_neighbours(self, flight: Flight, share: int) -> list[Flight]:
        source, together = flight.source, flight.together
        is_run = len(together) > share
        limit = min(source.run_blocks, max(share, len(together)))
        run = [flight]
        for step in (1, -1):
            block = flight.block + step
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

    def _waiting_one(self, source: Source, block: int) -> Flight | None:
        flight = self.of(source, block)
        is_free = flight is not None and not flight.is_running and flight.is_wanted
        return flight if is_free else None

    def _begin(self, flight: Flight) -> None:
        flight.is_running = True
        flight.readers = 1
        self._waiting[flight.source.store] -= 1

    def land(self, flight: Flight, slot: int) -> None:
        """End a flight whose block is in a slot now, or `ABSENT`."""
        flight.is_over = True
        flight.source.slot_of[flight.block] = slot
        del self._flights[flight.source.index, flight.block]

    def call_off(self, sources: Collection[Source], error: HeadraceError) -> None:
        """Fail all waits for blocks of datasets, and end their flights that wait for a thread."""
        for flight in self.all():
            if flight.source not in sources:
                continue
            flight.fail(error)
            flight.demands.clear()
            flight.owners.clear()
            if not flight.is_running:
                # Its entry is still in a queue, and must not start it.
                self._begin(flight)
                self.land(flight, ABSENT)

    def has_any(self, source: Source) -> bool:
        """Return whether a block of a dataset is being fetched."""
        return any(flight.source is source for flight in self._flights.values())

    def _depart(self, source: Source, block: int) -> Flight:
        flight = Flight(source, block)
        self._waiting[source.store] += 1
        self._flights[source.index, block] = flight
        source.slot_of[block] = IN_FLIGHT
        return flight
