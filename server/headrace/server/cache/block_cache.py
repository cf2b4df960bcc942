"""The cache of decoded blocks that all streams of a server share.

Contract of a block:

1. A block is fetched by one thread at a time, however many streams need it.
2. A block that streams wait for is pinned for each of them when it arrives, before anything can
   evict it. A stream holds pins only while it copies, never while it waits or sends. So pins are
   always released, and any cache that can hold one block makes progress.
3. If a fetch fails, the streams that wait for it get the error. The failure is not kept: the next
   stream that needs the block fetches it again. A failed prefetch is only counted.
4. A queued prefetch is dropped when all streams that asked for the block are gone.
5. `remove_source` frees all blocks of a dataset: unread ones at once, the others when their last
   reader is done. Streams of the dataset get `RebalanceError` when they next wait, and none of its
   blocks is fetched any more; the block of a running fetch is discarded.
6. `close` ends the fetching threads; waiting streams get `DrainingError`.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RebalanceError
from headrace.server.cache.disk.disk_cache import DiskCache
from headrace.server.cache.fetch.block_runs import BlockReader, run_blocks
from headrace.server.cache.fetch.concurrency import FIRST_LIMIT
from headrace.server.cache.fetch.fetch_queue import Fetches
from headrace.server.cache.fetch.fetch_threads import Fetchers, HeldObserver, ReadBudget
from headrace.server.cache.joined_sources import JoinedSources
from headrace.server.cache.memory.allocation import BlockSpace, closed_error
from headrace.server.cache.memory.arena import Arena
from headrace.server.cache.memory.prefault import Prefault
from headrace.server.cache.memory.shared_memory import SourceTables, WorkerTable
from headrace.server.cache.memory.slot_table import SlotTable
from headrace.server.cache.needs import CacheNeeds
from headrace.server.cache.pieces import PieceReader, Pieces
from headrace.server.cache.readers import Readers, UseObserver, Waiter
from headrace.server.cache.source import ABSENT, Growth, Source
from headrace.server.layout.block_layout import BlockLayout
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.storage import MAX_RANGE_BYTES

# How long the removal of a dataset waits for running reads: longer than the timeouts of a read.
_REMOVAL_TIMEOUT_S = 60.0


# Running reads hold at most one part in this many of the cache (arbitrary), or a single block.
_READS_SHARE = 4


class CacheObserver(HeldObserver, UseObserver, Protocol):
    """Receives what the cache reports."""


# Even in a small cache, a run of the order, 2 MiB by default, is one read.
_WHOLE_RUN_BYTES = 4 << 20
_LEAST_READS = 4


class BlockCache:
    """Decoded blocks of many datasets in one arena of fixed size; thread-safe.

    Attributes:
        disk: See below.
        budget_bytes: See below.
        needs: What the jobs of the open streams need.
        memory: The arena of all blocks.
        readers: The streams that read the blocks, and their pins.

    Args:
        budget_bytes: The most bytes of all decoded blocks together.
        fetch_threads: The most concurrent reads of each store.
        observer: Receives reports.
        disk: A cache of stored blocks in a folder; this cache closes it. None for none.
        arena: The memory of the blocks; None for private memory of this process.
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
        self.budget_bytes = budget_bytes
        self.needs = CacheNeeds(budget_bytes)
        self._lock = threading.Lock()
        self._observer = observer
        self._slots = SlotTable(None if arena is None else arena.capacity)
        self.readers = Readers(self._lock, self._slots, observer)
        self._growth = Growth()
        self._sources: dict[int, Source] = {}
        self._source_count = 0
        self._windows: dict[int, list[Source]] = {}
        self._window_count = 0
        self._ended_windows: deque[int] = deque()
        self._fetches = Fetches()
        self._space = BlockSpace(
            self._lock,
            budget_bytes,
            arena=arena,
            slots=self._slots,
            readers=self.readers,
            sources=self._sources,
        )
        self.memory = self._space.memory
        # Running reads use a part of the cache, or one block for each thread.
        most_bytes = min(budget_bytes // _READS_SHARE, FIRST_LIMIT * MAX_RANGE_BYTES)
        run_bytes = max(
            most_bytes // min(FIRST_LIMIT, fetch_threads),
            min(_WHOLE_RUN_BYTES, most_bytes // _LEAST_READS),
        )
        run_bytes = min(MAX_RANGE_BYTES, run_bytes)
        self._read_budget = ReadBudget(most_bytes, max(1, run_bytes))
        self._fetch_threads = fetch_threads
        self._fetchers: dict[str, Fetchers] = {}
        # Number of streams that wait for blocks.
        self._demands = 0
        self._prefault = Prefault(
            self._lock,
            self.memory,
            used_bytes=lambda: self._space.used_bytes,
            wanted_bytes=lambda: sum([each.memory_bytes for each in self._sources.values()]),
            is_awaited=lambda: self._demands > 0,
        )

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that hold blocks."""
        return self._space.used_bytes

    @property
    def together_bytes(self) -> int:
        """The most bytes that the blocks of one batch may take if it waits for all without copies.

        It is half of a job's part of the cache, because blocks for its next batches arrive too.
        """
        return self.budget_bytes // (2 * max(1, self.readers.job_count))

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
        """Add a dataset to the cache.

        Args:
            reader: Fetches the blocks.
            layout: The layout of decoded blocks.
            block_count: Number of blocks.
            memory_bytes: Bytes of all blocks in memory, approximately; 0 if unknown.
            fingerprint: The dataset's fingerprint, if its blocks are kept in the folder.
            tables: Tables for the places of blocks, which workers share; None for new ones.
            origin: The name, configuration and fingerprint of the dataset, for the cache of a
                worker, which does not read blocks itself.
            store: The name of the store, because reads of each store are limited separately.
        """
        del origin
        with self._lock:
            source = self._added(reader, layout, block_count, tables=tables, store=store)
            source.memory_bytes = memory_bytes
            if store not in self._fetchers:
                self._fetchers[store] = Fetchers(
                    self._lock,
                    self._fetches,
                    self._space,
                    read_budget=self._read_budget,
                    thread_count=self._fetch_threads,
                    observer=self._observer,
                    store=store,
                )
            # Last, because only `remove_source` undoes it.
            if self.disk is not None and fingerprint:
                source.on_removed = self.disk.open(fingerprint, block_count=block_count)
            self._sources[source.index] = source
            self._prefault.start()
        return source

    def open_window(
        self,
        members: Sequence[tuple[Source, Pieces]],
        slots_of: Sequence[NDArray[np.int32]] | None = None,
    ) -> tuple[int, list[Source]]:
        """Add the pieces of a window.

        Args:
            members: Datasets in the cache, and the pieces of each.
            slots_of: Tables for the slots of the pieces of each, which workers share; None for new
                ones.

        Returns:
            The number of the window for `end_window`, and the pieces of each dataset in the cache.
        """
        with self._lock:
            self._window_count += 1
            opened = [
                self._added(
                    PieceReader(whole.reader, pieces),
                    whole.layout,
                    whole.slot_of.size,
                    # A slot has one block or piece at a time, so they share the bases.
                    tables=None if slots_of is None else SourceTables(slots_of[at], whole.bases),
                    store=whole.store,
                    whole=whole,
                )
                for at, (whole, pieces) in enumerate(members)
            ]
            for source in opened:
                assert source.whole is not None
                source.removed = source.whole.removed
                self._sources[source.index] = source
            self._windows[self._window_count] = opened
            return self._window_count, opened

    def end_window(self, number: int) -> None:
        """Let `free_windows` free the pieces of a window; takes no lock."""
        self._ended_windows.append(number)

    def is_window_used(self, number: int) -> bool:
        """Return whether a window has not ended."""
        return number in self._windows and number not in self._ended_windows

    def free_windows(self) -> None:
        """Free the pieces of windows that have ended; blocks that are being read go later."""
        while self._ended_windows:
            try:
                number = self._ended_windows.popleft()
            except IndexError:
                return
            with self._lock:
                self._retire(self._windows.pop(number))

    def remove_source(self, source: Source) -> None:
        """Remove a dataset and free its blocks and all pieces of them.

        Its streams need not have ended. This waits for running reads, so that the reader may be
        closed, but no longer than a minute. Any thread may call it, even twice.
        """
        with self._lock:
            gone = [source, *(each for each in self._sources.values() if each.whole is source)]
            self._retire(gone)
            self.readers.freed.wait_for(
                lambda: self._space.closed or not any(map(self._is_reading, gone)),
                _REMOVAL_TIMEOUT_S,
            )
            on_removed, source.on_removed = source.on_removed, None
        if on_removed is not None:
            on_removed()

    @contextmanager
    def demand(self, source: Source, blocks: NDArray[np.int64], waiter: Waiter) -> Iterator[None]:
        """Fetch blocks that are not cached, and pin each for this stream when it arrives.

        `arrivals` returns them while the context lasts. Fetches that still run at its end continue
        as prefetches.
        """
        self.begin_demand(source, blocks, waiter)
        try:
            yield
        finally:
            self.end_demand(source, blocks, waiter)

    def begin_demand(self, source: Source, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        """Start a demand, as entering the context of `demand` does."""
        with self._lock:
            self._space.check_open()
            _check_served(source)
            slots = source.slot_of[blocks]
            self._demands += 1
            self._slots.pin(slots[slots > ABSENT])
            waiter.error = None
            for block in blocks[slots > ABSENT].tolist():
                waiter.deliver(block)
            missing = blocks[slots <= ABSENT].tolist()
            new = sum([self._fetches.demand(source, block, waiter) for block in missing])
            self._fetchers[source.store].wake(new, urgent=True)

    def end_demand(self, source: Source, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        """End a demand, as leaving the context of `demand` does."""
        with self._lock:
            self._demands -= 1
            for block in blocks.tolist():
                fetch = self._fetches.of(source, block)
                if fetch is not None and waiter in fetch.demands:
                    fetch.demands.remove(waiter)
            left = np.array(waiter.arrived + waiter.handed, np.int64)
            waiter.arrived, waiter.handed = [], []
        self.readers.unpin(source.slot_of[left])

    def release(self, source: Source, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        """Unpin demanded blocks before the end of the demand."""
        with self._lock:
            held = set(waiter.arrived)
            given = [block for block in blocks.tolist() if block in held]
            waiter.arrived = [block for block in waiter.arrived if block not in set(given)]
        self.readers.unpin(source.slot_of[np.array(given, np.int64)])

    def add_worker(self, table: WorkerTable) -> None:
        """Add the table of a worker, in which it pins blocks."""
        with self._lock:
            self._slots.worker_tables = (*self._slots.worker_tables, table)

    def remove_worker(self, table: WorkerTable) -> None:
        """Remove the table of a worker that is gone, with its pins."""
        with self._lock:
            tables = self._slots.worker_tables
            self._slots.worker_tables = tuple(one for one in tables if one is not table)
            self._free_removed()
            self.readers.freed.notify_all()

    def arrivals(self, source: Source, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        """Wait for demanded blocks and return those that arrived; none after the timeout.

        They stay pinned until the next call, or until the `demand` ends.

        Raises:
            HeadraceError: A block cannot be fetched.
        """
        self.readers.unpin(source.slot_of[np.array(waiter.handed, np.int64)])
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
        """Prefetch blocks for a stream; return those that were neither cached nor being fetched."""
        with self._lock:
            if source.removed:
                return blocks[:0]
            # Few blocks: lists take less time than as many calls of NumPy.
            slots = source.slot_of[blocks].tolist()
            self._slots.asked[[slot for slot in slots if slot > ABSENT]] = self._slots.ranking
            found = list(zip(blocks.tolist(), slots, strict=True))
            reads = 0
            for together in _neighbours([block for block, slot in found if slot <= ABSENT]):
                for block in together:
                    self._fetches.ask(source, block, waiter, together=together)
                reads += -(-len(together) // source.run_blocks)
            missing = [block for block, slot in found if slot == ABSENT]
            self._fetchers[source.store].wake(min(reads, len(missing)), urgent=False)
        return np.array(missing, np.int64)

    def prefetch_joined(
        self, joined: JoinedSources, blocks: NDArray[np.int64], waiter: Waiter
    ) -> NDArray[np.int64]:
        """Prefetch blocks of several datasets, as `prefetch` does."""
        with self._lock:
            slots = joined.slots(blocks)
            self._slots.asked[slots[slots > ABSENT]] = self._slots.ranking
        return joined.ask(
            blocks[slots <= ABSENT],
            lambda source, own: self.prefetch(source, own, waiter),
        )

    def close(self) -> None:
        """End the fetching threads and all waits, and give the memory up."""
        with self._lock:
            for fetch in self._fetches.all():
                fetch.fail(closed_error())
            fetchers = list(self._fetchers.values())
            for each in fetchers:
                each.stop()
            self._space.close()
        self._prefault.stop()
        for each in fetchers:
            each.join()
        self.memory = self._space.give_up()
        if self.disk is not None:
            self.disk.close()

    def _added(
        self,
        reader: BlockReader,
        layout: BlockLayout,
        block_count: int,
        *,
        tables: SourceTables | None,
        store: str,
        whole: Source | None = None,
    ) -> Source:
        source = Source(
            self._source_count,
            reader,
            layout,
            block_count,
            tables=tables,
            run_blocks=run_blocks(reader, self._read_budget.run_bytes),
            store=store,
            whole=whole,
        )
        source.growth = self._growth
        self._source_count += 1
        return source

    def _retire(self, sources: Sequence[Source]) -> None:
        """Remove datasets or pieces without a wait: what is being read is discarded later."""
        for source in sources:
            source.removed = True
        self._fetches.call_off(set(sources), _removed_error())
        self._free_removed()
        self.readers.freed.notify_all()

    def _is_reading(self, source: Source) -> bool:
        return self._fetches.has_any(source) or self._fetchers[source.store].is_reading(source)

    def _free_removed(self) -> None:
        """Free the unread blocks of removed datasets."""
        for source in [source for source in self._sources.values() if source.removed]:
            if self._space.evict_all(source):
                del self._sources[source.index]
        has_left = any(source.removed for source in self._sources.values())
        self.readers.on_unpinned = self._free_removed if has_left else None


def _neighbours(blocks: Sequence[int]) -> Iterator[range]:
    """Yield the ranges of adjacent blocks, given in rising order."""
    start = 0
    for end, block in enumerate(blocks, 1):
        if end == len(blocks) or blocks[end] != block + 1:
            yield range(blocks[start], block + 1)
            start = end


def _check_served(source: Source) -> None:
    if source.removed:
        raise _removed_error()


def _removed_error() -> RebalanceError:
    return RebalanceError(
        "the dataset is no longer served here, or was reopened; reconnect to continue"
    )
