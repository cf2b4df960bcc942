"""The threads that fetch the blocks of one store into the cache.

Contract of a fetch:

1. Success: the block is in the cache, pinned once for each stream that waits for it, before
   anything can evict it. Blocks that are verified together land together, as far as there is room.
2. Failure: the streams that wait for the block get the error, even if it is a bug. The failure is
   not kept.
3. Removal: a block whose dataset was removed meanwhile is discarded.
4. Blocks of one read are still separate fetches: if one fails, the others are not affected.
5. Blocks that a stream waits for are read at once if a thread is free. Blocks are prefetched within
   the store's limit (`concurrency`). Both wait while running reads hold `most_bytes`.
6. Another thread repeats a slow read once, and a repeat that is slow as well (`slow_reads`). For
   each block the first success counts; a failure counts only if nobody else reads the block. A read
   that is being repeated no longer counts against the limit, so it blocks no other read.
7. `stop`: threads end when their fetches do.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from headrace.errors import HeadraceError, InternalError, StoreUnavailableError
from headrace.server.cache.decode import DecodedBlock
from headrace.server.cache.fetch.block_runs import read_run, read_verified
from headrace.server.cache.fetch.concurrency import Concurrency
from headrace.server.cache.fetch.fetch_queue import Fetch, Fetches
from headrace.server.cache.fetch.slow_reads import SlowReads
from headrace.server.cache.memory.allocation import BlockSpace
from headrace.server.cache.memory.arena import Memory
from headrace.server.cache.source import ABSENT, Source
from headrace.server.cache.stored_blocks import StoredBlock
from headrace.storage import ReadBlock, VerifiedBlocks
from headrace.storage.store.retry import hearing_failures

_log = logging.getLogger(__name__)

# Shortest time between two looks for slow reads (arbitrary: a fraction of what counts as slow).
_LOOK_S = 0.01


_Write: TypeAlias = Callable[
    [Memory, Sequence[int], Sequence[tuple[int, int]]], list[tuple[int, ...]]
]
"""Writes some rows of a read to their extents; returns the bases of each block's parts."""

_Landing: TypeAlias = Sequence[tuple[Fetch, int, int]]
"""Blocks of a read: the fetch of each, its bytes in the arena, and its row in the read."""


class HeldObserver(Protocol):
    """Receives what the cache holds."""

    def held(self, *, used_bytes: int, block_count: int) -> None:
        """Record what the cache holds."""


@dataclass(slots=True)
class ReadBudget:
    """The memory that running reads of all stores hold; used under the cache's lock.

    Attributes:
        most_bytes: The approximate limit; a single read is always allowed.
        run_bytes: The most bytes of the blocks of one read.
        held_bytes: Bytes that running reads hold.
        freed: Notified when there is room again.
    """

    most_bytes: int
    run_bytes: int
    held_bytes: int = 0
    freed: list[threading.Condition] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether no further read may start."""
        return bool(self.held_bytes) and self.held_bytes + self.run_bytes > self.most_bytes

    def begin(self, size: int) -> None:
        """Count the start of a read."""
        self.held_bytes += size

    def end(self, size: int) -> None:
        """Count the end of a read."""
        was_full = self.is_full
        self.held_bytes -= size
        if was_full:
            for waiting in self.freed:
                waiting.notify()

    def size(self, run: list[Fetch]) -> int:
        """Return approximately how many bytes a read holds."""
        return len(run) * self.run_bytes // run[0].source.run_blocks


@dataclass(slots=True, eq=False)
class _Read:
    """One running read.

    Attributes:
        fetches: The fetches of its blocks.
        size: Approximate bytes that it holds.
        began: When it started, by the monotonic clock.
        is_repeat: Whether it repeats a slow read.
        was_asked_again: Whether another read repeats it because it is slow.
    """

    fetches: list[Fetch]
    size: int
    began: float
    is_repeat: bool = False
    was_asked_again: bool = False

    @property
    def is_over(self) -> bool:
        """Whether all its blocks have arrived."""
        return all(fetch.is_over for fetch in self.fetches)


class Fetchers:
    """The fetching threads of one store.

    Args:
        lock: The cache's lock, which the caller holds.
        fetches: The blocks to fetch; used under the lock.
        space: The memory for blocks; used under the lock.
        read_budget: The memory that running reads of all stores hold.
        thread_count: The most concurrent reads.
        observer: Receives what the cache holds, after each block.
        store: The name of the store.
    """

    def __init__(
        self,
        lock: threading.Lock,
        fetches: Fetches,
        space: BlockSpace,
        *,
        read_budget: ReadBudget,
        thread_count: int,
        observer: HeldObserver,
        store: str = "",
    ) -> None:
        self._lock = lock
        self._work = threading.Condition(lock)
        self._watch = threading.Condition(lock)
        self._fetches = fetches
        self._space = space
        self._read_budget = read_budget
        read_budget.freed.append(self._work)
        self._observer = observer
        self._store = store
        self._closed = False
        self._concurrency = Concurrency(thread_count)
        self._slow = SlowReads(is_local=not urlsplit(store).netloc)
        self._reads: set[_Read] = set()
        # Running reads that count against the limit.
        self._running = 0
        self._again: deque[_Read] = deque()
        self._thread_count = thread_count
        self._threads = [
            threading.Thread(target=self._run, name=f"headrace-fetch-{index}", daemon=True)
            for index in range(thread_count)
        ]
        self._threads.append(
            threading.Thread(target=self._watch_reads, name="headrace-fetch-watch", daemon=True)
        )
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            self.stop()
            raise

    def wake(self, count: int, *, urgent: bool) -> None:
        """Wake threads for new fetches; the caller holds the lock.

        Args:
            count: The number of threads that new fetches are enough for.
            urgent: Whether streams wait for them.
        """
        most = self._thread_count if urgent else self._concurrency.limit
        if self._running >= most:
            # A thread that finishes takes them; waking another one would be the main cost here.
            self._concurrency.hold_back()
            return
        self._work.notify(min(count, most - self._running))

    def stop(self) -> None:
        """Start no more fetches; the caller holds the lock."""
        self._closed = True
        self._work.notify_all()
        self._watch.notify_all()

    def join(self) -> None:
        """Wait for the threads to end."""
        for thread in self._threads:
            thread.join()

    def is_reading(self, source: Source) -> bool:
        """Return whether a read of a dataset has not ended; the caller holds the lock."""
        return any(read.fetches[0].source is source for read in self._reads)

    def _run(self) -> None:
        while (read := self._next()) is not None:
            self._fetch(read)

    def _next(self) -> _Read | None:
        with self._lock:
            while not self._closed:
                if self._again:
                    slow = self._again.popleft()
                    if slow.is_over:
                        continue
                    return self._begun(self._repeat(slow))
                if run := self._taken():
                    return self._begun(_Read(run, self._read_budget.size(run), time.monotonic()))
                self._work.wait()
        return None

    def _taken(self) -> list[Fetch]:
        """Return the fetches that may be read now."""
        if not self._fetches.waiting(self._store):
            return []
        if self._read_budget.is_full:
            self._concurrency.hold_back()
            return []
        # For waiting streams, all threads share the blocks.
        run = self._fetches.take(self._thread_count, store=self._store, urgent=True)
        if run or not self._fetches.waiting(self._store):
            return run
        limit = self._concurrency.limit
        if self._running >= limit:
            self._concurrency.hold_back()
            return []
        return self._fetches.take(limit, store=self._store, urgent=False)

    def _repeat(self, slow: _Read) -> _Read:
        left = [fetch for fetch in slow.fetches if not fetch.is_over]
        for fetch in left:
            fetch.readers += 1
        # The memory of the first read is counted already.
        return _Read(left, 0, time.monotonic(), is_repeat=True)

    def _begun(self, read: _Read) -> _Read:
        self._reads.add(read)
        self._running += 1
        self._read_budget.begin(read.size)
        if len(self._reads) == 1:
            self._watch.notify()
        return read

    def _ended(self, read: _Read, size: int, *, is_whole: bool) -> None:
        with self._lock:
            now = time.monotonic()
            self._reads.discard(read)
            self._read_budget.end(read.size)
            if not read.was_asked_again:
                self._running -= 1
            self._concurrency.ended(size, now=now)
            if is_whole and not read.is_repeat:
                threshold_s = self._slow.threshold_s
                self._slow.ended(now - read.began)
                if self._slow.threshold_s < threshold_s:
                    self._watch.notify()
            # This thread takes the next fetches; another one helps if the limit has grown.
            if self._running + 1 < self._concurrency.limit and self._fetches.waiting(self._store):
                self._work.notify()
            self._space.readers.freed.notify_all()

    def _fetch(self, read: _Read) -> None:
        """Fetch blocks of one dataset, and end their fetches."""
        left = {fetch.block: fetch for fetch in read.fetches}
        size, is_whole = 0, True
        try:
            with hearing_failures(self._heard):
                for found in _read(read.fetches[0].source, list(left)):
                    landed = self._end(found, left)
                    size += landed
                    is_whole &= landed > 0
        except Exception as error:  # noqa: BLE001 - a bug must reach the streams that wait, as a value
            for fetch in left.values():
                self._crash(fetch, error)
        finally:
            self._ended(read, size, is_whole=is_whole and not left)

    def _heard(self, error: StoreUnavailableError) -> None:
        del error
        with self._lock:
            self._concurrency.throttled()

    def _watch_reads(self) -> None:
        """Repeat slow reads while there are reads."""
        with self._lock:
            while not self._closed:
                due_s = self._ask_again()
                self._watch.wait(due_s)

    def _ask_again(self) -> float | None:
        """Queue slow reads again; return the seconds until the next look; None for none."""
        threshold_s, now = self._slow.threshold_s, time.monotonic()
        if not self._reads or threshold_s == math.inf:
            return None
        candidates = [read for read in self._reads if not read.was_asked_again]
        for read in sorted(candidates, key=attrgetter("began")):
            left_s = read.began + threshold_s - now
            if left_s > 0:
                return max(_LOOK_S, left_s)
            if not self._slow.can_ask_again(now - read.began):
                break
            if read.is_over:
                continue
            self._slow.asked_again()
            read.was_asked_again = True
            self._running -= 1
            self._again.append(read)
            self._work.notify(1)
        return 2 * _LOOK_S

    def _end(self, found: ReadBlock | VerifiedBlocks[StoredBlock], left: dict[int, Fetch]) -> int:
        """End the fetches of what was read; return the bytes that arrived, 0 if it failed."""
        if isinstance(found, VerifiedBlocks):
            blocks = list(found.contents.values())
            landing = [
                (left.pop(block), each.size, each.row) for block, each in found.contents.items()
            ]
            return self._landed(landing, blocks[0].run.write) if blocks else 0
        fetch, content = left.pop(found.block), found.content
        if isinstance(content, HeadraceError):
            self._crash(fetch, content)
            return 0
        try:
            decoded = DecodedBlock(fetch.source.layout, content)
        except Exception as error:  # noqa: BLE001 - as above
            self._crash(fetch, error)
            return 0
        return self._landed([(fetch, decoded.size, 0)], decoded.write_alone)

    def _landed(self, landing: _Landing, write: _Write) -> int:
        """Land blocks of one read; return the bytes that arrived, 0 if one failed."""
        size = sum([size for _, size, _ in landing])
        while landing:
            try:
                landing = self._land(landing, write)
            except Exception as error:  # noqa: BLE001 - as above
                self._crash(landing[0][0], error)
                landing, size = landing[1:], 0
        return size

    def _land(self, landing: _Landing, write: _Write) -> _Landing:
        """Land as many blocks as there is room for after the first; return the others."""
        with self._lock:
            landing = [each for each in landing if not each[0].is_over]
            if not landing:
                return landing
            sizes = [size for _, size, _ in landing]
            starts = [self._space.take(sizes[0])]
            starts += self._space.take_more(sizes[1:])
        extents = list(zip(starts, sizes, strict=False))
        try:
            rows = [row for *_, row in landing[: len(starts)]]
            written = write(self._space.memory, rows, extents)
        except BaseException:
            with self._lock:
                for start, size in extents:
                    self._space.give_back(start, size)
            raise
        with self._lock:
            for (fetch, *_), (start, size), bases in zip(landing, extents, written, strict=False):
                self._settle(fetch, start, size, bases)
        self._observer.held(used_bytes=self._space.used_bytes, block_count=self._space.slots.count)
        return landing[len(starts) :]

    def _settle(self, fetch: Fetch, start: int, size: int, bases: tuple[int, ...]) -> None:
        if fetch.is_over or fetch.source.removed:
            self._space.give_back(start, size)
            if not fetch.is_over:
                self._fetches.end(fetch, ABSENT)
            return
        self._fetches.end(fetch, self._space.settle(fetch, start, size, bases=bases))
        for waiter in fetch.demands:
            waiter.deliver(fetch.block)

    def _crash(self, fetch: Fetch, error: Exception) -> None:
        if not isinstance(error, HeadraceError):
            _log.error("block %d could not be fetched", fetch.block, exc_info=error)
            error = InternalError("the server failed; its log says how")
        with self._lock:
            fetch.readers -= 1
            if fetch.is_over or fetch.readers:
                return
            self._fetches.end(fetch, ABSENT)
            fetch.fail(error)
            self._space.readers.freed.notify_all()


def _read(
    source: Source, blocks: Sequence[int]
) -> Iterator[ReadBlock] | Iterator[ReadBlock | VerifiedBlocks[StoredBlock]]:
    if source.stored is None:
        return read_run(source.reader, blocks)
    return read_verified(source.reader, blocks, source.stored.verify)
