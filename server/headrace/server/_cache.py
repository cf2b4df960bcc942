"""The cache of decoded blocks that all streams of a server share.

Contract of a block:

1. A block is fetched by one thread at a time, however many streams want it.
2. A block that streams wait for is pinned for each of them the moment it arrives, before anything
   can evict it. A stream holds pins only while it copies, never while it waits or sends, so pins
   always go away and a cache of any size that holds one block makes progress.
3. A fetch that fails is the error of the streams that wait for it then. Nothing of it stays: the
   next stream that wants the block fetches it anew. A fetch ahead of need fails silently, but for
   a count.
4. A block asked for ahead of need is dropped from the queue when every stream that asked is gone.
5. `remove_source` frees every block of a dataset: at once those that nobody reads, each other one
   when its last reader is done. Streams of that dataset get `RebalanceError` when they next wait,
   and nothing of it is fetched any more; a fetch under way ends, and its block is thrown away.
6. `close` ends the fetching threads; waiting streams get `DrainingError`.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import (
    ConfigurationError,
    DrainingError,
    HeadraceError,
    InternalError,
    RebalanceError,
    StoreUnavailableError,
)
from headrace.server._arena import Arena, ExtentAllocator, map_memory
from headrace.server._block import BlockLayout
from headrace.server._dataset_config import DatasetConfig
from headrace.server._decode import DecodedBlock
from headrace.server._disk import DiskCache
from headrace.server._eviction import Victims
from headrace.server._gather import BlockRows
from headrace.server._queue import FairQueue
from headrace.server._shared import Desk, SourceTables, barrier
from headrace.server._slots import SlotTable
from headrace.server._source import ABSENT, IN_FLIGHT, BlockReader, Flight, Source, Waiter

_log = logging.getLogger(__name__)

# How long a fetched block may wait for room. Pins last for one copy, so this passes only if the
# machine has all but stopped.
_ROOM_TIMEOUT_S = 60.0

# How long it waits for readers before it takes what lies within a job's part of the cache. A copy
# takes milliseconds; the rest is for a machine that is short of processors.
_SPARING_S = 1.0

# How often it looks whether workers still read a block (arbitrary; a copy takes milliseconds).
_DESK_POLL_S = 0.005


class CacheObserver(Protocol):
    """What the cache reports."""

    def used(self, *, hits: int, misses: int) -> None:
        """Count blocks that were cached, or not, when a batch needed them."""

    def held(self, *, used_bytes: int, block_count: int) -> None:
        """Note what the cache holds now."""


class BlockCache:
    """Decoded blocks of many datasets in one arena of fixed size.

    Args:
        budget_bytes: Greatest size of all decoded blocks together.
        fetch_threads: Blocks fetched at once.
        observer: Is told what happens.
        disk: Keeps stored blocks in a folder; the cache closes it.
        arena: Where the blocks lie; memory of this process alone without it.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        fetch_threads: int,
        observer: CacheObserver,
        disk: DiskCache | None = None,
        arena: Arena | None = None,
    ) -> None:
        self.disk = disk
        self._arena = arena
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._memory = map_memory(budget_bytes) if arena is None else arena.memory
        self._extents = ExtentAllocator(budget_bytes)
        self._slots = SlotTable(None if arena is None else arena.capacity)
        self._victims = Victims(self._slots, budget_bytes=budget_bytes)
        self._streams: set[Waiter] = set()
        self._jobs: dict[Hashable, int] = {}
        self._job_count = 0
        self._observer = observer
        self._sources: dict[int, Source] = {}
        self._source_count = 0
        self._has_leftovers = False
        # Blocks that have room and are being written into it.
        self._landing = 0
        self._flights: dict[tuple[int, int], Flight] = {}
        self._urgent = FairQueue[Flight]()
        self._ahead = FairQueue[Flight]()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._fetch_all, name=f"headrace-fetch-{index}", daemon=True)
            for index in range(fetch_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def used_bytes(self) -> int:
        """Return the bytes of the arena that hold blocks now."""
        return self._extents.used

    def add_source(
        self,
        reader: BlockReader,
        layout: BlockLayout,
        *,
        block_count: int,
        on_removed: Callable[[], None] | None = None,
        tables: SourceTables | None = None,
        origin: tuple[str, DatasetConfig, str] | None = None,
    ) -> Source:
        """Let the blocks of a dataset into the cache.

        Args:
            reader: Fetches them.
            layout: How they lie when decoded.
            block_count: How many there are.
            on_removed: Called once when `remove_source` is done.
            tables: Where to note where they lie, for workers; fresh ones if None.
            origin: The dataset's name, what opens it, and its fingerprint; for the cache of a
                worker, which does not read blocks itself.
        """
        del origin
        with self._lock:
            source = Source(
                self._source_count,
                reader,
                layout,
                block_count,
                on_removed=on_removed,
                tables=tables,
            )
            self._source_count += 1
            self._sources[source.index] = source
        return source

    def remove_source(self, source: Source) -> None:
        """Forget a dataset and free its blocks.

        Its streams need not have ended. Waits for reads under way, so that the reader may be
        closed; one that takes longer than a minute is left to itself. Any thread may call it,
        twice too.
        """
        with self._lock:
            source.removed = True
            for flight in list(self._flights.values()):
                if flight.source is source:
                    self._call_off(flight)
            self._free_removed()
            self._room.notify_all()
            self._room.wait_for(
                lambda: self._closed or not self._is_reading(source), _ROOM_TIMEOUT_S
            )
            on_removed, source.on_removed = source.on_removed, None
        if on_removed is not None:
            on_removed()

    def waiter(self, job: Hashable = None) -> Waiter:
        """Return a new stream's handle.

        Args:
            job: Equal for streams that read the same blocks at about the same time. Jobs have
                equal parts of the cache, and of the fetching.
        """
        return self.join(Waiter(self._lock), job)

    def join(self, waiter: Waiter, job: Hashable) -> Waiter:
        """Note a stream of a job; as `waiter`, for handles of other kinds."""
        with self._lock:
            if job not in self._jobs:
                self._job_count += 1
                self._jobs[job] = self._job_count
            waiter.job = self._jobs[job]
            self._streams.add(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Forget a stream that has ended."""
        with self._lock:
            waiter.gone = True
            self._streams.discard(waiter)
            active = {stream.job for stream in self._streams}
            self._jobs = {job: index for job, index in self._jobs.items() if index in active}

    def is_cached(self, source: Source, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks are in memory just now; they may go at any time."""
        return source.slot_of[blocks] > ABSENT

    @contextmanager
    def lease(self, source: Source, blocks: NDArray[np.int64]) -> Iterator[bool]:
        """Pin blocks while the context lasts: all of them, or none if one is not cached.

        Args:
            source: Their dataset.
            blocks: Distinct ordinals.

        Yields:
            Whether they are pinned.
        """
        with self._lock:
            slots = source.slot_of[blocks]
            hits = int(np.count_nonzero(slots > ABSENT))
            is_whole = hits == blocks.size
            if is_whole:
                self._slots.pin(slots)
        self._observer.used(hits=hits, misses=blocks.size - hits)
        try:
            yield is_whole
        finally:
            if is_whole:
                self._unpin(slots)

    @contextmanager
    def demand(self, source: Source, blocks: NDArray[np.int64], waiter: Waiter) -> Iterator[None]:
        """Fetch blocks that are not cached, and pin each for this stream as it comes.

        `arrivals` hands them out while the context lasts. What is still on its way at its end
        goes on as if asked for ahead of need.
        """
        self.begin_demand(source, blocks, waiter)
        try:
            yield
        finally:
            self.end_demand(source, blocks, waiter)

    def begin_demand(self, source: Source, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        """Do what `demand` does when its context is entered."""
        with self._lock:
            self._check_open()
            _check_served(source)
            slots = source.slot_of[blocks]
            self._slots.pin(slots[slots > ABSENT])
            waiter.error = None
            for block in blocks[slots > ABSENT].tolist():
                waiter.deliver(block)
            missing = blocks[slots <= ABSENT].tolist()
            for block in missing:
                self._demand_one(source, block, waiter)
            self._work.notify(len(missing))

    def end_demand(self, source: Source, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        """Do what `demand` does when its context is left."""
        with self._lock:
            for block in blocks.tolist():
                flight = self._flights.get((source.index, block))
                if flight is not None and waiter in flight.demands:
                    flight.demands.remove(waiter)
            left = np.array(waiter.arrived + waiter.handed, np.int64)
            waiter.arrived, waiter.handed = [], []
        self._unpin(source.slot_of[left])

    def release(self, source: Source, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        """Unpin demanded blocks before the end of the demand."""
        with self._lock:
            held = set(waiter.arrived)
            given = [block for block in blocks.tolist() if block in held]
            waiter.arrived = [block for block in waiter.arrived if block not in set(given)]
        self._unpin(source.slot_of[np.array(given, np.int64)])

    def add_desk(self, desk: Desk) -> None:
        """Let a worker pin blocks."""
        with self._lock:
            self._slots.desks = (*self._slots.desks, desk)

    def remove_desk(self, desk: Desk) -> None:
        """Forget the pins of a worker that is gone."""
        with self._lock:
            self._slots.desks = tuple(one for one in self._slots.desks if one is not desk)
            if self._has_leftovers:
                self._free_removed()
            self._room.notify_all()

    def arrivals(self, source: Source, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        """Wait for demanded blocks and return those that came; none after the time-out.

        They stay pinned until the next call, or the end of the `demand`.

        Raises:
            HeadraceError: One of them cannot be fetched.
        """
        self._unpin(source.slot_of[np.array(waiter.handed, np.int64)])
        waiter.handed = []
        with waiter.wake:
            waiter.wake.wait_for(
                lambda: waiter.arrived or waiter.error or waiter.interrupted, timeout_s
            )
            if waiter.error is not None:
                raise waiter.error
            waiter.handed, waiter.arrived = waiter.arrived, []
        return np.array(waiter.handed, np.int64)

    def prefetch(
        self, source: Source, blocks: NDArray[np.int64], waiter: Waiter
    ) -> NDArray[np.int64]:
        """Ask for blocks ahead of need, and say that the batch planned last reads them.

        Returns:
            Those of them that were neither cached nor on their way.
        """
        waiter.will_read(source, blocks)
        # Without the lock: a block that comes or goes meanwhile costs nothing but a later fetch.
        slots = source.slot_of[blocks]
        if (slots > ABSENT).all():
            self._slots.asked[slots] = self._slots.ranking
            return blocks[:0]
        return self.prefetch_unplanned(source, blocks, waiter)

    def prefetch_unplanned(
        self, source: Source, blocks: NDArray[np.int64], waiter: Waiter
    ) -> NDArray[np.int64]:
        """Ask for blocks ahead of need, as `prefetch`, for a batch that was planned elsewhere."""
        with self._lock:
            if source.removed:
                return blocks[:0]
            slots = source.slot_of[blocks]
            self._slots.asked[slots[slots > ABSENT]] = self._slots.ranking
            for block in blocks[slots == IN_FLIGHT].tolist():
                self._flights[source.index, block].owners.append(waiter)
            missing = blocks[slots == ABSENT].tolist()
            for block in missing:
                flight = self._depart(source, block)
                flight.owners.append(waiter)
                self._ahead.put(flight, job=waiter.job)
            self._work.notify(len(missing))
        return np.array(missing, np.int64)

    def rows(
        self, source: Source, blocks: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> BlockRows:
        """Return samples that lie in pinned blocks.

        Args:
            source: Their dataset.
            blocks: ``(samples,)``: the block of each.
            offsets: ``(samples,)``: its place in that block.
        """
        # Plain indexing takes twice as long.
        slots = np.take(source.slot_of, blocks, mode="clip")
        bases = np.take(source.bases, slots, axis=1, mode="clip")
        return BlockRows(source.layout, self._memory, bases=bases, offsets=offsets)

    def close(self) -> None:
        """End the fetching threads and every wait."""
        with self._lock:
            self._closed = True
            for flight in self._flights.values():
                _fail(flight.demands, DrainingError("the server has shut down; try another"))
            self._work.notify_all()
            self._room.notify_all()
        for thread in self._threads:
            thread.join()
        if self.disk is not None:
            self.disk.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DrainingError("the server has shut down; try another")

    def _is_reading(self, source: Source) -> bool:
        return any(flight.source is source for flight in self._flights.values())

    def _call_off(self, flight: Flight) -> None:
        _fail(flight.demands, _removed_error())
        flight.demands.clear()
        flight.owners.clear()
        if not flight.is_running:
            # It may stand in a queue, whose entry must not start it.
            flight.is_running = True
            self._arrive(flight, ABSENT)

    def _free_removed(self) -> None:
        """Free the blocks of removed sources that nobody reads."""
        table = self._slots
        for source in [source for source in self._sources.values() if source.removed]:
            held = np.flatnonzero(table.source == source.index)
            # Not a generator: every one of them must be tried.
            gone = [self._evict(slot) for slot in held.tolist() if not table.is_pinned(slot)]
            if sum(gone) == held.size:
                del self._sources[source.index]
        self._has_leftovers = any(source.removed for source in self._sources.values())

    def _demand_one(self, source: Source, block: int, waiter: Waiter) -> None:
        flight = self._flights.get((source.index, block)) or self._depart(source, block)
        flight.demands.append(waiter)
        flight.owners.append(waiter)
        if not flight.is_running:
            self._urgent.put(flight, job=waiter.job)

    def _depart(self, source: Source, block: int) -> Flight:
        flight = Flight(source, block)
        self._flights[source.index, block] = flight
        source.slot_of[block] = IN_FLIGHT
        return flight

    def _arrive(self, flight: Flight, slot: int) -> None:
        flight.source.slot_of[flight.block] = slot
        del self._flights[flight.source.index, flight.block]

    def _unpin(self, slots: NDArray[np.int32]) -> None:
        if not slots.size:
            return
        with self._lock:
            self._slots.unpin(slots)
            if self._has_leftovers:
                self._free_removed()
            self._room.notify_all()

    def _fetch_all(self) -> None:
        while (flight := self._next_flight()) is not None:
            self._fetch(flight)

    def _next_flight(self) -> Flight | None:
        with self._lock:
            while not self._closed:
                flight = self._urgent.take() or self._ahead.take()
                if flight is None:
                    self._work.wait()
                    continue
                if flight.is_running:
                    continue
                if flight.is_wanted:
                    flight.is_running = True
                    return flight
                # It may stand in both queues; the other entry must not start it either.
                flight.is_running = True
                self._arrive(flight, ABSENT)
        return None

    def _fetch(self, flight: Flight) -> None:
        try:
            block = DecodedBlock(
                flight.source.layout, flight.source.reader.read_block(flight.block)
            )
            self._land(flight, block)
        except HeadraceError as error:
            self._crash(flight, error)
        except Exception:  # noqa: BLE001 - a bug must reach the stream that waits, as a value
            _log.exception("block %d could not be fetched", flight.block)
            self._crash(flight, InternalError("the server failed; its log says how"))

    def _land(self, flight: Flight, block: DecodedBlock) -> None:
        with self._lock:
            begin = self._make_room(block.size)
            self._landing += 1
        try:
            bases = block.write(self._memory, begin)
        except BaseException:
            with self._lock:
                self._landing -= 1
                self._extents.give(begin, block.size)
            raise
        with self._lock:
            self._landing -= 1
            if flight.source.removed:
                self._extents.give(begin, block.size)
                self._arrive(flight, ABSENT)
                self._room.notify_all()
                return
            slot = self._slots.add(
                source=flight.source.index,
                block=flight.block,
                begin=begin,
                length=block.size,
                owner=flight.job,
            )
            flight.source.set_bases(slot, bases, capacity=self._slots.capacity)
            self._slots.pins[slot] = len(flight.demands)
            if self._arena is not None:
                barrier()
            self._arrive(flight, slot)
            for waiter in flight.demands:
                waiter.deliver(flight.block)
            self._room.notify_all()
            held = {"used_bytes": self._extents.used, "block_count": self._slots.count}
        self._observer.held(**held)

    def _make_room(self, length: int) -> int:
        """Return where ``length`` bytes begin that are free now, evicting what must go."""
        if length > self._extents.size:
            raise ConfigurationError(
                f"a block of {length} bytes does not fit a cache of {self._extents.size}; start "
                "the server with a larger cache_bytes"
            )
        began = time.monotonic()
        while (begin := self._free_extent(length)) is None:
            self._check_open()
            waited_s = time.monotonic() - began
            sparing = waited_s < _SPARING_S and (self._slots.is_read or self._landing > 0)
            victim = self._victims.take(self._streams, sparing=sparing)
            if victim is not None:
                self._evict(victim)
            elif waited_s >= _ROOM_TIMEOUT_S:
                raise StoreUnavailableError("the cache had no room for a block; try again")
            else:
                left_s = (_SPARING_S if sparing else _ROOM_TIMEOUT_S) - waited_s
                # Workers do not say when they have read a block.
                self._room.wait(min(left_s, _DESK_POLL_S) if self._slots.desks else left_s)
        return begin

    def _free_extent(self, length: int) -> int | None:
        return None if self._slots.is_full(self._landing) else self._extents.take(length)

    def _evict(self, slot: int) -> bool:
        """Give the memory of a block away, unless a worker has just begun to read it."""
        source, block = self._sources[self._slots.source[slot]], self._slots.block[slot]
        source.slot_of[block] = ABSENT
        if self._slots.desks:
            barrier()
            if self._slots.is_pinned(slot):
                source.slot_of[block] = slot
                return False
        if self._arena is not None:
            self._arena.note_eviction(self._slots.capacity)
        self._extents.give(int(self._slots.begin[slot]), int(self._slots.length[slot]))
        self._slots.remove(slot)
        return True

    def _crash(self, flight: Flight, error: HeadraceError) -> None:
        with self._lock:
            self._arrive(flight, ABSENT)
            _fail(flight.demands, error)
            self._room.notify_all()


def _check_served(source: Source) -> None:
    if source.removed:
        raise _removed_error()


def _removed_error() -> RebalanceError:
    return RebalanceError("the dataset is served here no more, or anew; reconnect to go on")


def _fail(waiters: list[Waiter], error: HeadraceError) -> None:
    for waiter in waiters:
        waiter.fail(error)
