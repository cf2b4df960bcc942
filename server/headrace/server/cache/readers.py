"""How streams read a cache: they join it, announce what they will read, and pin it meanwhile."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.server.cache.gather import BlockRows, Rows
from headrace.server.cache.joined_sources import JoinedSources
from headrace.server.cache.memory.arena import Memory
from headrace.server.cache.memory.slot_table import SlotTable
from headrace.server.cache.source import ABSENT, Slots, Source
from headrace.server.layout.block_layout import BlockLayout
from headrace.storage import OpenDataset

Plan: TypeAlias = "list[tuple[Slots, NDArray[np.int64]]]"
"""The blocks of one batch, by the object that finds their slots."""

# The weight of the latest batch in the pace of a stream (arbitrary).
_PACE_WEIGHT = 0.2


class JobPrefetches:
    """The prefetches of the streams of one job; thread-safe.

    These streams read the same blocks. Without coordination, each would see that another has
    prefetched the next blocks, and would prefetch those after them. Together they would prefetch
    more than fits, and evict blocks that are still needed.

    Attributes:
        streams: Number of open streams of the job.
        asked_bytes: Stored bytes that were prefetched for batches that no stream has taken yet.
    """

    def __init__(self, *, streams: int = 0) -> None:
        self._lock = threading.Lock()
        self.streams = streams
        self.asked_bytes = 0

    def change(self, *, asked_bytes: int = 0, streams: int = 0) -> None:
        """Add to the number of streams, and to the prefetched bytes; may be negative."""
        with self._lock:
            self.asked_bytes += asked_bytes
            self.streams += streams


class Filling(Protocol):
    """The state of a cache's memory."""

    @property
    def is_filling(self) -> bool:
        """Whether blocks may have to be evicted soon."""


@dataclass(slots=True)
class Flag:
    """A `Filling` as a plain value, which is read without a call.

    Attributes:
        is_filling: Whether blocks may have to be evicted soon.
    """

    is_filling: bool = False


NEVER_FILLING = Flag()
"""For streams without a cache."""


class Waiter:
    """One stream as the cache sees it.

    Attributes:
        job: The job; streams of one job read the same blocks at about the same time.
        period_s: The recent time from one of its batches to the next.
        taken: Number of batches that it has started.
        ahead: The prefetches of all streams of the job.
        asked_bytes: The stream's own part of those prefetches.
        filling: Whether blocks may have to be evicted soon, so that the stream should announce its
            reads.
        gone: Whether the stream has ended; its prefetches are dropped.
        interrupted: Whether the stream should stop waiting and check why.
        arrived: Demanded blocks that arrived, pinned.
        handed: Arrived blocks that the stream is copying from, pinned.
        error: The reason why a demanded block will not arrive.
    """

    __slots__ = (
        "_batches",
        "_expected",
        "_foreseen",
        "_took_at",
        "ahead",
        "arrived",
        "asked_bytes",
        "error",
        "filling",
        "gone",
        "handed",
        "interrupted",
        "job",
        "period_s",
        "taken",
        "wake",
    )

    def __init__(self, lock: threading.Lock) -> None:
        self.wake = threading.Condition(lock)
        self.job = 0
        self.period_s = 1.0
        self.taken = 0
        self.ahead = JobPrefetches(streams=1)
        self.asked_bytes = 0
        self.filling: Filling = NEVER_FILLING
        self.gone = False
        self.interrupted = False
        self.arrived: list[int] = []
        self.handed: list[int] = []
        self.error: HeadraceError | None = None
        # The batch that is being read, followed by planned ones.
        self._batches: deque[Plan] = deque([[]])
        # Batches after these, whose blocks are not prefetched yet.
        self._foreseen: deque[Plan] = deque()
        # Blocks of batches that are not planned yet, by the part they belong to.
        self._expected: dict[Hashable, Plan] = {}
        self._took_at = 0.0

    def deliver(self, block: int) -> None:
        """Pass on a block that is pinned for the stream; the caller holds the cache's lock."""
        self.arrived.append(block)
        self.wake.notify_all()

    def fail(self, error: HeadraceError) -> None:
        """Report that a block will not arrive; the caller holds the cache's lock."""
        self.error = error
        self.wake.notify_all()

    def interrupt(self) -> None:
        """End this wait and all later ones; any thread may call it."""
        with self.wake:
            self.interrupted = True
            self.wake.notify_all()

    def ask_bytes(self, size: int) -> None:
        """Count prefetched bytes; negative for bytes that the stream has taken."""
        self.asked_bytes += size
        self.ahead.change(asked_bytes=size)

    def join(self, ahead: JobPrefetches, filling: Filling) -> None:
        """Join a job in a cache."""
        self.ahead, self.filling = ahead, filling
        ahead.change(streams=1)

    def leave(self) -> None:
        """Withdraw all prefetches and announcements; any thread may call this, once."""
        self.gone = True
        self._batches, self._foreseen, self._expected = deque([[]]), deque(), {}
        self.ahead.change(streams=-1, asked_bytes=-self.asked_bytes)

    def plan_batch(self, count: int = 1) -> None:
        """Start a new batch, the last of ``count``, to which later prefetches belong."""
        while self._foreseen and count:
            # Keeps what was foreseen, which would otherwise be unknown until it is prefetched.
            self._batches.append(self._foreseen[0])
            self._foreseen.popleft()
            count -= 1
        self._batches.extend([[] for _ in range(count)])

    def foresee_batch(self) -> None:
        """Start a new foreseen batch, after all others, to which later blocks belong."""
        self._foreseen.append([])

    def foresee(self, source: Slots, blocks: NDArray[np.int64]) -> None:
        """Add blocks of the batch foreseen last, which are not prefetched yet."""
        self._foreseen[-1].append((source, blocks))

    def expect(self, part: Hashable, source: Slots, blocks: NDArray[np.int64]) -> None:
        """Add blocks of batches that are not planned yet.

        Args:
            part: The key for `forget`.
            source: The dataset.
            blocks: The blocks.
        """
        self._expected = {**self._expected, part: [*self._expected.get(part, []), (source, blocks)]}

    def forget(self, part: Hashable) -> None:
        """Remove the expected blocks of a part that has been read."""
        self._expected = {each: plan for each, plan in self._expected.items() if each != part}

    def will_read(self, source: Slots, blocks: NDArray[np.int64]) -> None:
        """Add blocks of the batch planned last."""
        self._batches[-1].append((source, blocks))

    def begin_batch(self, count: int = 1) -> None:
        """Advance to the next batch, or to the last of ``count`` that are read together."""
        for _ in range(min(count, len(self._batches) - 1)):
            self._batches.popleft()
        now = time.monotonic()
        if self._took_at:
            self.period_s += _PACE_WEIGHT * ((now - self._took_at) / count - self.period_s)
        self._took_at = now
        self.taken += count

    def plan(self) -> list[Plan]:
        """Return the blocks to be read, starting with the current batch; any thread may call it."""
        # In this order, so that a batch that moves meanwhile appears twice instead of not at all.
        foreseen = list(self._foreseen)
        return [*self._batches, *foreseen]

    def expected(self) -> Plan:
        """Return the blocks expected after the plan, or also in it; any thread may call it."""
        return [each for plan in self._expected.values() for each in plan]


class UseObserver(Protocol):
    """Receives what streams find in the cache."""

    def used(self, *, hits: int, misses: int) -> None:
        """Count blocks that were cached or not when a batch needed them."""


class Readers:
    """The streams that read one cache, and their pins; thread-safe.

    Attributes:
        streams: The open streams.
        filling: Whether more than half of the memory is in use.
        freed: Notified when there may be more room.
        ended: How many reads of blocks have ended so far.
        on_unpinned: Called under the lock when blocks were unpinned; None for nothing to do.

    Args:
        lock: The cache's lock.
        slots: The table of cached blocks.
        observer: Receives reports.
    """

    def __init__(self, lock: threading.Lock, slots: SlotTable, observer: UseObserver) -> None:
        self.streams: set[Waiter] = set()
        self.filling = Flag()
        self.freed = threading.Condition(lock)
        self.ended = 0
        self.on_unpinned: Callable[[], None] | None = None
        self._lock = lock
        self._slots = slots
        self._observer = observer
        self._jobs: dict[Hashable, int] = {}
        self._last_job = 0
        self._ahead: WeakValueDictionary[Hashable, JobPrefetches] = WeakValueDictionary()

    @property
    def job_count(self) -> int:
        """The number of jobs with an open stream."""
        return len(self._jobs)

    def waiter(self, job: Hashable = None) -> Waiter:
        """Return a handle for a new stream.

        Args:
            job: Equal for streams that read the same blocks at about the same time. Jobs get equal
                parts of the cache and of the fetching.
        """
        return self.join(Waiter(self._lock), job)

    def join(self, waiter: Waiter, job: Hashable) -> Waiter:
        """Add a stream of a job. `waiter` does so too; this is for other kinds of handles."""
        with self._lock:
            if job not in self._jobs:
                self._last_job += 1
                self._jobs[job] = self._last_job
            waiter.job = self._jobs[job]
            waiter.join(self._ahead.setdefault(job, JobPrefetches()), self.filling)
            self.streams.add(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Remove a stream that has ended."""
        with self._lock:
            if not waiter.gone:
                waiter.leave()
            self.streams.discard(waiter)
            # Most often the first one that is looked at is of the same job.
            if not any(stream.job == waiter.job for stream in self.streams):
                self._jobs = {job: one for job, one in self._jobs.items() if one != waiter.job}

    def will_read(self, source: Slots, blocks: NDArray[np.int64], waiter: Waiter) -> bool:
        """Record that the batch planned last reads blocks; return whether all are cached."""
        waiter.will_read(source, blocks)
        # Without the lock: a block that arrives or is evicted meanwhile costs only a later fetch.
        if (slot_of := source.slot_of) is not None:
            return self._slots.ask(slot_of, blocks)
        return self._slots.ask_found(source.slots(blocks))

    def pin(self, source: Slots, blocks: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """Pin distinct blocks; return their slots, or None, with no pin, if one is not cached."""
        with self._lock:
            if (slot_of := source.slot_of) is not None:
                slots, hits = self._slots.pin_all(slot_of, blocks)
            else:
                slots = source.slots(blocks)
                hits = self._slots.pin_found(slots)
        self._observer.used(hits=hits, misses=blocks.size - hits)
        return slots if hits == blocks.size else None

    def unpin(self, slots: NDArray[np.int32]) -> None:
        """Undo a `pin`."""
        if not slots.size:
            return
        with self._lock:
            self._slots.unpin(slots)
            self.ended += slots.size
            if self.on_unpinned is not None:
                self.on_unpinned()
            self.freed.notify_all()


class Lease:
    """Pins blocks while its context lasts, all or none; entering returns whether they are pinned.

    A class, because a generator would cost 2 us for each batch.

    Args:
        readers: Pins the blocks.
        source: Their dataset, or several.
        blocks: ``(n,) int64``: distinct ordinals.
    """

    __slots__ = ("_blocks", "_pinned", "_readers", "_source")

    def __init__(self, readers: Readers, source: Slots, blocks: NDArray[np.int64]) -> None:
        self._readers = readers
        self._source = source
        self._blocks = blocks
        self._pinned: NDArray[np.int32] | None = None

    def __enter__(self) -> bool:
        self._pinned = self._readers.pin(self._source, self._blocks)
        return self._pinned is not None

    def __exit__(self, *exc: object) -> None:
        if self._pinned is not None:
            self._readers.unpin(self._pinned)


class StreamCache(Protocol):
    """A cache as the blocks of a stream need it; see `headrace.server.cache.block_cache`.

    Attributes:
        readers: The streams that read it.
        memory: The memory of its blocks.
    """

    readers: Readers
    memory: Memory

    @property
    def together_bytes(self) -> int:
        """The most bytes of the blocks of a batch that waits for all of them."""

    def prefetch(
        self, source: Source, blocks: NDArray[np.int64], waiter: Waiter
    ) -> NDArray[np.int64]:
        """Prefetch blocks; return those that were neither cached nor being fetched."""

    def prefetch_joined(
        self, joined: JoinedSources, blocks: NDArray[np.int64], waiter: Waiter
    ) -> NDArray[np.int64]:
        """Prefetch blocks of several datasets, as `prefetch` does."""

    def demand(
        self, source: Source, blocks: NDArray[np.int64], waiter: Waiter
    ) -> AbstractContextManager[None]:
        """Fetch blocks; `arrivals` returns them while the context lasts."""

    def arrivals(self, source: Source, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        """Wait for demanded blocks; return those that arrived, pinned until the next call."""


class Blocks(Protocol):
    """The cache as a stream needs it; the contract is in `headrace.server.cache.block_cache`."""

    @property
    def layout(self) -> BlockLayout:
        """The layout of the samples that `rows` returns."""

    def waiter(self, job: Hashable = None) -> Waiter:
        """Return a handle for the stream; streams of one job read the same blocks together."""

    def leave(self, waiter: Waiter) -> None:
        """Remove a stream that has ended."""

    def stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored bytes of each block: ``(n,) int64``."""

    def is_cached(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks are in memory: ``(n,) bool``."""

    def is_known(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks are in memory or being fetched: ``(n,) bool``."""

    def lease(self, blocks: NDArray[np.int64]) -> AbstractContextManager[bool]:
        """Pin distinct blocks while the context lasts, all or none; entering returns which."""

    def prefetch(self, blocks: NDArray[np.int64], waiter: Waiter) -> NDArray[np.int64]:
        """Prefetch blocks; return those that were neither in memory nor being fetched."""

    def ask_ahead(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        """Prefetch blocks of batches that are not planned yet.

        They are expected until `Waiter.forget` is called with the same part.
        """

    def expect(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        """Announce blocks as `ask_ahead` does, without fetching any."""

    def foresee(self, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        """Announce blocks of the batch foreseen last, without fetching any."""

    def demand(self, blocks: NDArray[np.int64], waiter: Waiter) -> AbstractContextManager[None]:
        """Fetch blocks; `arrivals` returns them while the context lasts."""

    def arrivals(self, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        """Wait for demanded blocks; return those that arrived, pinned until the next call."""

    def fit_together(self, blocks: NDArray[np.int64]) -> bool:
        """Return whether the cache has room to wait for all of these blocks together."""

    def rows(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> Rows:
        """Return samples in pinned blocks."""


SourceParts = Sequence[tuple[Source, NDArray[np.intp], NDArray[np.int64]]]
"""What is in the cache, the samples in each, and their blocks."""


class WholeBlocks(Blocks, Protocol):
    """The blocks of a dataset or a mixture, to which windows add pieces."""

    @property
    def cache(self) -> StreamCache:
        """The cache that holds them."""

    def rows_of(self, parts: SourceParts, offsets: NDArray[np.int64]) -> Rows:
        """Return samples in pinned blocks or pieces.

        Args:
            parts: What is in the cache, the samples in it, and their blocks.
            offsets: ``(samples,) int64``: the place of each sample in its block.
        """


class DatasetBlocks:
    """The blocks of one dataset.

    Attributes:
        cache: See below.
        source: See below.

    Args:
        cache: The cache that holds them.
        source: The dataset in the cache.
        dataset: The dataset.
    """

    def __init__(self, cache: StreamCache, source: Source, dataset: OpenDataset) -> None:
        self.cache = cache
        self.source = source
        self._dataset = dataset

    @property
    def layout(self) -> BlockLayout:
        return self.source.layout

    def waiter(self, job: Hashable = None) -> Waiter:
        return self.cache.readers.waiter((self.source.index, job))

    def leave(self, waiter: Waiter) -> None:
        self.cache.readers.leave(waiter)

    def stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._dataset.block_stored_bytes(blocks)

    def is_cached(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        cached: NDArray[np.bool_] = self.source.slot_of[blocks] > ABSENT
        return cached

    def is_known(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self.source.slot_of[blocks] != ABSENT
        return known

    def lease(self, blocks: NDArray[np.int64]) -> AbstractContextManager[bool]:
        return Lease(self.cache.readers, self.source, blocks)

    def prefetch(self, blocks: NDArray[np.int64], waiter: Waiter) -> NDArray[np.int64]:
        if self.cache.readers.will_read(self.source, blocks, waiter):
            return blocks[:0]
        return self.cache.prefetch(self.source, blocks, waiter)

    def ask_ahead(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        waiter.expect(part, self.source, blocks)
        self.cache.prefetch(self.source, blocks, waiter)

    def expect(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        waiter.expect(part, self.source, blocks)

    def foresee(self, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        waiter.foresee(self.source, blocks)

    def demand(self, blocks: NDArray[np.int64], waiter: Waiter) -> AbstractContextManager[None]:
        return self.cache.demand(self.source, blocks, waiter)

    def fit_together(self, blocks: NDArray[np.int64]) -> bool:
        raw_bytes = int(self._dataset.block_raw_bytes(blocks).sum())
        share = self.source.memory_bytes / max(1, self._dataset.raw_bytes)
        return raw_bytes * share <= self.cache.together_bytes

    def arrivals(self, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        return self.cache.arrivals(self.source, waiter, timeout_s=timeout_s)

    def rows_of(self, parts: SourceParts, offsets: NDArray[np.int64]) -> Rows:
        return rows_as_one(self.layout, self.cache.memory, parts, offsets)

    def rows(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> Rows:
        source = self.source
        return BlockRows(
            source.layout, self.cache.memory, source.slot_of, source.bases, blocks, offsets
        )


def rows_as_one(
    layout: BlockLayout, memory: Memory, parts: SourceParts, offsets: NDArray[np.int64]
) -> BlockRows:
    """Return samples of equal layout as if each had a block of its own; see `WholeBlocks`."""
    bases = np.empty((len(layout.parts), offsets.size), np.int64)
    for source, places, own in parts:
        bases[:, places] = source.bases[: len(bases), source.slot_of[own]]
    return lone_rows(layout, memory, bases, offsets)


def lone_rows(
    layout: BlockLayout, memory: Memory, bases: NDArray[np.int64], offsets: NDArray[np.int64]
) -> BlockRows:
    """Return samples as if each had a block of its own.

    Args:
        layout: Their layout.
        memory: The memory of the cache.
        bases: ``(parts, samples) int64``: the bases of the block of each.
        offsets: ``(samples,) int64``: its place in the block.
    """
    every = np.arange(offsets.size)
    return BlockRows(
        layout, memory, slot_of=every.astype(np.int32), bases=bases, blocks=every, offsets=offsets
    )
