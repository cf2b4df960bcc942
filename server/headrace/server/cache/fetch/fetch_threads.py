"""The threads that bring blocks into the cache.

Contract of a fetch:

1. Success: the block is in the cache, pinned once for each stream that waits for it, before
   anything can evict it.
2. Failure: the streams that wait for it get the error, a bug too; nothing of it stays.
3. Removal: a block whose dataset was removed meanwhile is thrown away.
4. Blocks that come in one read are still each a fetch of its own: one that fails is no matter of
   the others.
5. `stop`: threads end when their fetches do.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

import pyarrow as pa

from headrace.errors import HeadraceError, InternalError
from headrace.server.cache.decode import DecodedBlock
from headrace.server.cache.fetch.block_runs import read_run
from headrace.server.cache.fetch.fetch_queue import Flight, Flights
from headrace.server.cache.memory.allocation import Room
from headrace.server.cache.source import ABSENT

_log = logging.getLogger(__name__)


class HeldObserver(Protocol):
    """Is told what the cache holds."""

    def held(self, *, used_bytes: int, block_count: int) -> None:
        """Note what the cache holds now."""


class Fetchers:
    """The fetching threads of one cache.

    Args:
        lock: The cache's.
        flights: What is to be fetched; used under the lock.
        room: Where it goes; used under the lock.
        thread_count: Reads at once.
        observer: Is told what the cache holds after each block.
    """

    def __init__(
        self,
        lock: threading.Lock,
        flights: Flights,
        room: Room,
        *,
        thread_count: int,
        observer: HeldObserver,
    ) -> None:
        self._lock = lock
        self._work = threading.Condition(lock)
        self._flights = flights
        self._room = room
        self._observer = observer
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"headrace-fetch-{index}", daemon=True)
            for index in range(thread_count)
        ]
        for thread in self._threads:
            thread.start()

    def wake(self, count: int) -> None:
        """Let so many threads look for flights; the caller holds the lock."""
        self._work.notify(count)

    def stop(self) -> None:
        """Let no fetch begin any more; the caller holds the lock."""
        self._closed = True
        self._work.notify_all()

    def join(self) -> None:
        """Wait for the threads to end."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while run := self._next():
            self._fetch(run)

    def _next(self) -> list[Flight]:
        with self._lock:
            while not self._closed:
                if run := self._flights.take(len(self._threads)):
                    return run
                self._work.wait()
        return []

    def _fetch(self, run: list[Flight]) -> None:
        """Fetch blocks of one dataset, and end their flights."""
        left = {flight.block: flight for flight in run}
        try:
            for read in read_run(run[0].source.reader, list(left)):
                self._end(left.pop(read.block), read.content)
        except Exception as error:  # noqa: BLE001 - a bug must reach the streams that wait, as a value
            for flight in left.values():
                self._crash(flight, error)

    def _end(self, flight: Flight, content: pa.RecordBatch | HeadraceError) -> None:
        if isinstance(content, HeadraceError):
            self._crash(flight, content)
            return
        try:
            self._land(flight, DecodedBlock(flight.source.layout, content))
        except Exception as error:  # noqa: BLE001 - as above
            self._crash(flight, error)

    def _land(self, flight: Flight, block: DecodedBlock) -> None:
        with self._lock:
            begin = self._room.take(block.size)
        try:
            bases = block.write(self._room.memory, begin)
        except BaseException:
            with self._lock:
                self._room.give_back(begin, block.size)
            raise
        with self._lock:
            if flight.source.removed:
                self._room.give_back(begin, block.size)
                self._flights.land(flight, ABSENT)
                return
            slot = self._room.settle(flight, begin, block.size, bases=bases)
            self._flights.land(flight, slot)
            for waiter in flight.demands:
                waiter.deliver(flight.block)
        self._observer.held(used_bytes=self._room.used_bytes, block_count=self._room.slots.count)

    def _crash(self, flight: Flight, error: Exception) -> None:
        if not isinstance(error, HeadraceError):
            _log.error("block %d could not be fetched", flight.block, exc_info=error)
            error = InternalError("the server failed; its log says how")
        with self._lock:
            self._flights.land(flight, ABSENT)
            flight.fail(error)
            self._room.freed.notify_all()
