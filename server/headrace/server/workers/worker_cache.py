"""The cache as seen by a worker: it reads blocks in place, and requests them over a socket.

It has the methods of `BlockCache` and of its `Readers` that streams use, and keeps their contract:

1. A stream pins on the worker's table, by the contract of
   `headrace.server.cache.memory.shared_memory`, without a request to the supervisor.
2. The supervisor fetches blocks that are not cached. It pins a block for the stream that demands it
   until the worker reports that the block has been read.
3. The worker writes what its streams will read to the table after blocks have been evicted, a few
    times a second.
4. When the supervisor ends, every wait ends with `DrainingError`, and `on_lost` is called.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DrainingError, ServerUnreachableError
from headrace.server.cache.block_cache import CacheObserver
from headrace.server.cache.disk.disk_cache import DiskCache
from headrace.server.cache.fetch.block_runs import BlockReader
from headrace.server.cache.joined_sources import JoinedSources
from headrace.server.cache.memory.arena import ArenaHeader, Memory
from headrace.server.cache.memory.eviction import next_uses
from headrace.server.cache.memory.shared_memory import (
    Shared,
    SourceTables,
    WindowTables,
    WorkerTable,
    barrier,
)
from headrace.server.cache.pieces import Pieces
from headrace.server.cache.readers import Filling, JobPrefetches, Waiter
from headrace.server.cache.source import ABSENT, Growth, Slots, Source
from headrace.server.layout.block_layout import BlockLayout
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.server.workers.messages import (
    Arrived,
    CloseSource,
    CloseWindow,
    Demand,
    EndDemand,
    Failed,
    JobNamed,
    NeedOfOther,
    Opened,
    OpenSource,
    OpenWindow,
    Prefetch,
    Release,
    StreamClosed,
    StreamOpened,
    ToSupervisor,
    ToWorker,
)
from headrace.server.workers.shared_needs import WorkerNeeds

# As long as workers have to start: the supervisor may have to open the dataset, from a store.
_OPEN_TIMEOUT_S = 600.0
# How often the future reads of streams are written (arbitrary: a few batches).
_DESK_PERIOD_S = 0.05


class _WorkerWaiter(Waiter):
    """A stream of this worker.

    Attributes:
        number: Its number in messages to the supervisor.
        serial: The number of its latest demand.
    """

    __slots__ = ("number", "serial")

    def __init__(self, lock: threading.Lock, number: int) -> None:
        super().__init__(lock)
        self.number = number
        self.serial = 0


class WorkerCache:
    """The methods of the supervisor's cache that a worker's streams use.

    Attributes:
        memory: The arena of all blocks.
        needs: What the jobs of all workers' streams need.

    Args:
        connection: A connection to the supervisor, read only by `listen`.
        arena: The memory of the blocks, for reading.
        header: The tables that describe the arena.
        worker_table: This worker's table.
        observer: Receives reports of events of the cache.
    """

    disk: DiskCache | None = None

    def __init__(
        self,
        connection: Connection,
        *,
        arena: Memory,
        header: ArenaHeader,
        worker_table: WorkerTable,
        observer: CacheObserver,
    ) -> None:
        self._connection = connection
        self.memory = arena
        self.budget_bytes = arena.array.size
        self.needs = WorkerNeeds(self.budget_bytes, send=self.send)
        self._header = header
        self._worker_table = worker_table
        self._observer = observer
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._streams: dict[int, _WorkerWaiter] = {}
        self._ahead: WeakValueDictionary[Hashable, JobPrefetches] = WeakValueDictionary()
        # The tables of workers have all the slots that there may be, and never grow.
        self._growth = Growth()
        self._opening: dict[int, Future[tuple[tuple[int, ...], Shared]]] = {}
        self._windows: dict[int, WindowTables] = {}
        self._ended_windows: deque[int] = deque()
        self._is_lost = False
        self._closed = threading.Event()
        self._seen_evictions = 0
        self._writer = threading.Thread(
            target=self._write_table, name="headrace-worker-table", daemon=True
        )
        self._writer.start()

    @property
    def readers(self) -> WorkerCache:
        """Itself: streams of workers pin and announce here."""
        return self

    @property
    def filling(self) -> Filling:
        """The state of the memory that all workers share."""
        return self._header

    @property
    def together_bytes(self) -> int:
        """Return the most bytes that the blocks of a batch may have to be awaited without copies.

        This is an eighth of the cache (arbitrary), since the jobs of other workers are unknown
        here.
        """
        return self.budget_bytes // 8

    def add_source(
        self,
        reader: BlockReader,
        layout: BlockLayout,
        *,
        block_count: int,
        memory_bytes: int = 0,
        fingerprint: str = "",
        tables: SourceTables | None = None,
        origin: tuple[str, DatasetConfig, str] | None = None,
        store: str = "",
    ) -> Source:
        """Let the supervisor open a dataset; the local reader is not used.

        Raises:
            DrainingError: The supervisor has ended.
            HeadraceError: The supervisor cannot open it.
        """
        del memory_bytes, fingerprint, tables, store
        assert origin is not None, "a worker opens its datasets from their settings"
        request = next(self._numbers)
        (index,), memory = self._opened(OpenSource(request, *origin))
        places = SourceTables.lie_in(memory, block_count=block_count, part_count=len(layout.parts))
        source = Source(index, reader, layout, block_count, tables=places)
        source.growth = self._growth
        return source

    def open_window(self, members: Sequence[tuple[Source, Pieces]]) -> tuple[int, list[Source]]:
        """Let the supervisor add the pieces of a window, as `BlockCache.open_window`.

        Raises:
            DrainingError: The supervisor has ended.
            HeadraceError: The supervisor cannot add them.
        """
        request = next(self._numbers)
        asked = tuple((whole.index, pieces) for whole, pieces in members)
        indices, memory = self._opened(OpenWindow(request, asked))
        wholes = [whole for whole, _ in members]
        tables = WindowTables(memory, [whole.slot_of.size for whole in wholes])
        with self._lock:
            self._windows[request] = tables
        sources = [
            Source(
                index,
                whole.reader,
                whole.layout,
                slot_of.size,
                tables=SourceTables(slot_of, whole.bases),
                whole=whole,
            )
            for index, whole, slot_of in zip(indices, wholes, tables.slots_of, strict=True)
        ]
        for source in sources:
            source.growth = self._growth
        return request, sources

    def end_window(self, number: int) -> None:
        """Let `free_windows` end a window, as `BlockCache.end_window`."""
        self._ended_windows.append(number)

    def is_window_used(self, number: int) -> bool:
        """Return whether any worker uses a window, as `BlockCache.is_window_used`."""
        tables = self._windows.get(number)
        return tables is not None and not tables.is_over[0]

    def free_windows(self) -> None:
        """Tell the supervisor which windows this worker no longer needs."""
        while self._ended_windows:
            try:
                number = self._ended_windows.popleft()
            except IndexError:
                return
            self.send(CloseWindow(number))
        # Each has a file open.
        with self._lock:
            over = [number for number, tables in self._windows.items() if tables.is_over[0]]
            for number in over:
                del self._windows[number]

    def remove_source(self, source: Source) -> None:
        """Tell the supervisor that this worker no longer needs a dataset."""
        if not source.removed:
            source.removed = True
            self.send(CloseSource(source.index))

    def waiter(self, job: Hashable = None) -> Waiter:
        """Return a handle for a new stream, as `Readers.waiter`."""
        waiter = _WorkerWaiter(self._lock, next(self._numbers))
        with self._lock:
            self._streams[waiter.number] = waiter
            waiter.join(self._ahead.setdefault(job, JobPrefetches()), self._header)
        self.send(StreamOpened(waiter.number, repr(job)))
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Remove a stream that has ended, as `Readers.leave`."""
        own = _own(waiter)
        with self._lock:
            if not own.gone:
                own.leave()
            self._streams.pop(own.number, None)
        self.send(StreamClosed(own.number))

    def will_read(self, source: Slots, blocks: NDArray[np.int64], waiter: Waiter) -> bool:
        """Record that the batch planned last reads blocks, as `Readers.will_read`."""
        waiter.will_read(source, blocks)
        return bool((source.slots(blocks) > ABSENT).all())

    def pin(self, source: Slots, blocks: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """Pin distinct blocks, as `Readers.pin`."""
        slots = source.slots(blocks)
        hits = int(np.count_nonzero(slots > ABSENT))
        is_whole = hits == blocks.size and self._pin(source, blocks, slots)
        self._observer.used(hits=hits, misses=blocks.size - hits)
        return slots if is_whole else None

    def unpin(self, slots: NDArray[np.int32]) -> None:
        """Undo a `pin`."""
        with self._lock:
            self._worker_table.pins[slots] -= 1

    def prefetch(
        self, source: Source, blocks: NDArray[np.int64], waiter: Waiter
    ) -> NDArray[np.int64]:
        """Ask for blocks ahead of need, as `BlockCache.prefetch`."""
        slots = source.slot_of[blocks]
        wanted = blocks[slots <= ABSENT]
        if wanted.size:
            self.send(Prefetch(_own(waiter).number, source.index, wanted))
        missing: NDArray[np.int64] = blocks[slots == ABSENT]
        return missing

    def prefetch_joined(
        self, joined: JoinedSources, blocks: NDArray[np.int64], waiter: Waiter
    ) -> NDArray[np.int64]:
        """Ask for blocks of several datasets ahead of need, as `BlockCache.prefetch_joined`."""
        return joined.ask(
            blocks[joined.slots(blocks) <= ABSENT],
            lambda source, own: self.prefetch(source, own, waiter),
        )

    @contextmanager
    def demand(self, source: Source, blocks: NDArray[np.int64], waiter: Waiter) -> Iterator[None]:
        """Fetch blocks that are not cached, as `BlockCache.demand`."""
        own = _own(waiter)
        with self._lock:
            own.serial += 1
            own.arrived, own.handed, own.error = [], [], None
            self._check_lost()
        self.send(Demand(own.number, own.serial, source.index, blocks))
        try:
            yield
        finally:
            with self._lock:
                own.serial += 1
                own.arrived, own.handed = [], []
            self.send(EndDemand(own.number))

    def arrivals(self, source: Source, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        """Wait for demanded blocks, as `BlockCache.arrivals`."""
        own = _own(waiter)
        if own.handed:
            self.send(Release(own.number, source.index, np.array(own.handed, np.int64)))
            own.handed = []
        with own.wake:
            own.wake.wait_for(lambda: own.arrived or own.error or own.interrupted, timeout_s)
            if own.error is not None:
                raise own.error
            own.handed, own.arrived = own.arrived, []
        return np.array(own.handed, np.int64)

    def close(self) -> None:
        """End every wait."""
        self._closed.set()
        self.lose()
        self._writer.join()

    def send(self, message: ToSupervisor) -> None:
        """Send a message to the supervisor, if it still runs."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            self.lose()

    def _opened(
        self, message: OpenSource | OpenWindow
    ) -> tuple[tuple[int, ...], NDArray[np.uint8]]:
        """Ask the supervisor to open something; return its numbers, and its tables for reading."""
        opened: Future[tuple[tuple[int, ...], Shared]] = Future()
        with self._lock:
            self._check_lost()
            self._opening[message.request] = opened
        self.send(message)
        try:
            indices, shared = opened.result(_OPEN_TIMEOUT_S)
        except TimeoutError as error:
            with self._lock:
                self._opening.pop(message.request, None)
            raise ServerUnreachableError(
                f"the server's process that holds the cache did not answer within "
                f"{_OPEN_TIMEOUT_S:.0f} s; try again, and look at its log for what it waits for"
            ) from error
        try:
            return indices, shared.map_read_only()
        finally:
            shared.close()

    def listen(self, other: Callable[[ToWorker], None]) -> None:
        """Handle the supervisor's messages until it ends.

        Args:
            other: Receives messages that do not concern the cache.
        """
        try:
            while True:
                self._take(self._connection.recv(), other)
        except (EOFError, OSError):
            pass
        finally:
            # Also if a descriptor could not be received: nothing after it can be understood.
            self.lose()

    def lose(self) -> None:
        """End every wait, as no more messages arrive."""
        with self._lock:
            self._is_lost = True
            for waiter in self._streams.values():
                waiter.fail(_lost_error())
            for opened in self._opening.values():
                opened.set_exception(_lost_error())
            self._opening.clear()

    def _take(self, message: ToWorker, other: Callable[[ToWorker], None]) -> None:
        match message:
            case Arrived() | Failed():
                self._answer(message)
            case JobNamed(stream, job):
                waiter = self._streams.get(stream)
                if waiter is not None:
                    waiter.job = job
            case NeedOfOther():
                self.needs.hear(message)
            case Opened():
                # The descriptor follows the message, so it must be received here.
                fd = recv_handle(self._connection) if message.error is None else -1
                with self._lock:
                    opened = self._opening.pop(message.request, None)
                if message.error is not None:
                    if opened is not None:
                        opened.set_exception(message.error)
                elif opened is not None:
                    opened.set_result((message.indices, Shared(fd, message.size)))
                else:
                    # Nobody waits for it any more; the supervisor keeps its side.
                    os.close(fd)
            case _:
                other(message)

    def _answer(self, message: Arrived | Failed) -> None:
        with self._lock:
            waiter = self._streams.get(message.stream)
            if waiter is None or waiter.serial != message.serial:
                return
            if isinstance(message, Arrived):
                waiter.deliver(message.block)
            else:
                waiter.fail(message.error)

    def _pin(self, source: Slots, blocks: NDArray[np.int64], slots: NDArray[np.int32]) -> bool:
        with self._lock:
            self._worker_table.pins[slots] += 1
        barrier()
        if np.array_equal(source.slots(blocks), slots):
            self._worker_table.last_use[slots] = time.monotonic_ns()
            return True
        self.unpin(slots)
        return False

    def _check_lost(self) -> None:
        if self._is_lost:
            raise _lost_error()

    def _write_table(self) -> None:
        while not self._closed.wait(_DESK_PERIOD_S):
            # Also of jobs that are over, which look for nothing any more.
            self.free_windows()
            evictions = self._header.evictions
            if evictions == self._seen_evictions:
                continue
            self._seen_evictions = evictions
            with self._lock:
                streams = list(self._streams.values())
            slots = self._header.slots
            soonest, owner = next_uses(slots, streams)
            known = np.isfinite(soonest)
            soonest[~known] = -time.monotonic()
            self._worker_table.owner[:slots] = owner
            self._worker_table.next_use[:slots] = soonest + time.monotonic()


def _own(waiter: Waiter) -> _WorkerWaiter:
    assert isinstance(waiter, _WorkerWaiter)
    return waiter


def _lost_error() -> DrainingError:
    return DrainingError("this worker of the server has ended; reconnect to continue")
