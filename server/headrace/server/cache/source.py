"""The blocks of a dataset as the cache and as streams see them, and how they are pinned."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.server.cache.fetch.block_runs import BlockReader, block_schema
from headrace.server.cache.gather import BlockRows, Rows
from headrace.server.cache.memory.shared_memory import SourceTables
from headrace.server.cache.stored_blocks import StoredForm, stored_form
from headrace.server.layout.block_layout import BlockLayout
from headrace.storage import OpenDataset

if TYPE_CHECKING:
    from headrace.server.cache.block_cache import BlockCache

ABSENT = 0
IN_FLIGHT = -1


@dataclass(slots=True)
class Growth:
    """Counts how often tables of bases of a cache were replaced because they were too short.

    Attributes:
        times: The number of replacements.
    """

    times: int = 0


class Source:
    """The blocks of one dataset as the cache sees them.

    Attributes:
        reader: Fetches the blocks.
        layout: The layout of decoded blocks.
        on_removed: Called once when the dataset was removed from the cache.
        run_blocks: The most neighbouring blocks to read together.
        store: The name of the store.
        stored: How its stored blocks are verified and written; None if they must be decoded.
        removed: Whether the dataset was removed; its blocks are not fetched any more.
        raw_bytes: Bytes of all its blocks in memory, approximately; 0 if unknown.
        growth: Counts replacements of `bases`; all datasets of a cache share it.
    """

    def __init__(
        self,
        index: int,
        reader: BlockReader,
        layout: BlockLayout,
        block_count: int,
        *,
        tables: SourceTables | None = None,
        run_blocks: int = 1,
        store: str = "",
    ) -> None:
        self.index = index
        self.raw_bytes = 0
        self.growth = Growth()
        self.run_blocks = run_blocks
        self.store = store
        self.reader = reader
        self.layout = layout
        self.stored: StoredForm | None = stored_form(block_schema(reader), layout)
        self.removed = False
        self.on_removed: Callable[[], None] | None = None
        # The slot of each block; 0 if it is not cached, -1 if it is being fetched. Fresh zeros cost
        # nothing until they are touched, so this stays small even for many blocks.
        self.slot_of = np.zeros(block_count, np.int32) if tables is None else tables.slot_of
        self.bases = np.zeros((len(layout.parts), 0), np.int64) if tables is None else tables.bases

    def set_bases(self, slot: int, bases: tuple[int, ...], *, capacity: int) -> None:
        """Set the bases of the parts of a block."""
        if self.bases.shape[1] <= slot:
            # Readers continue with the old table, which has all blocks that they have pinned.
            grown = np.zeros((len(self.layout.parts), capacity), np.int64)
            grown[:, : self.bases.shape[1]] = self.bases
            self.bases = grown
            self.growth.times += 1
        self.bases[:, slot] = bases

    def slots(self, blocks: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the slot of each block; 0 or less if it is not cached."""
        return self.slot_of[blocks]

    def is_cached(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks are in memory: ``(n,) bool``; they may be evicted at any time."""
        return self.slot_of[blocks] > ABSENT


class Slots(Protocol):
    """Finds the slots of the blocks of one or several datasets."""

    def slots(self, blocks: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the slot of each block; 0 or less if it is not cached."""


Plan: TypeAlias = "list[tuple[Slots, NDArray[np.int64]]]"
"""The blocks of one batch, by the object that finds their slots."""

# The weight of the latest batch in the pace of a stream (arbitrary).
_PACE_WEIGHT = 0.2


class JobAhead:
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


class JobsAhead:
    """The `JobAhead` of all jobs with an open stream; not thread-safe."""

    def __init__(self) -> None:
        self._jobs: weakref.WeakValueDictionary[Hashable, JobAhead] = weakref.WeakValueDictionary()

    def of(self, job: Hashable) -> JobAhead:
        """Return the object of a job."""
        found = self._jobs.get(job)
        if found is None:
            found = self._jobs[job] = JobAhead()
        return found


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
        self.ahead = JobAhead(streams=1)
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

    def join(self, ahead: JobAhead, filling: Filling) -> None:
        """Join a job in a cache."""
        self.ahead, self.filling = ahead, filling
        ahead.change(streams=1)

    def leave(self) -> None:
        """Withdraw all prefetches; any thread may call this, once."""
        self.gone = True
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


_Pinned = TypeVar("_Pinned")


class Lease(Generic[_Pinned]):
    """Pins blocks while its context lasts, all or none; entering returns whether they are pinned.

    A class, because a generator would cost 2 us for each batch.

    Args:
        pin: Pins the blocks and returns the argument of `unpin`; None if a block is not cached.
        unpin: Releases the pins.
    """

    __slots__ = ("_pin", "_pinned", "_unpin")

    def __init__(self, pin: Callable[[], _Pinned | None], unpin: Callable[[_Pinned], None]) -> None:
        self._pin = pin
        self._unpin = unpin
        self._pinned: _Pinned | None = None

    def __enter__(self) -> bool:
        self._pinned = self._pin()
        return self._pinned is not None

    def __exit__(self, *exc: object) -> None:
        if self._pinned is not None:
            self._unpin(self._pinned)


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

    def __init__(self, cache: BlockCache, source: Source, dataset: OpenDataset) -> None:
        self.cache = cache
        self.source = source
        self._dataset = dataset

    @property
    def layout(self) -> BlockLayout:
        return self.source.layout

    def waiter(self, job: Hashable = None) -> Waiter:
        return self.cache.waiter((self.source.index, job))

    def leave(self, waiter: Waiter) -> None:
        self.cache.leave(waiter)

    def stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._dataset.block_stored_bytes(blocks)

    def is_cached(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.source.is_cached(blocks)

    def is_known(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self.source.slot_of[blocks] != ABSENT
        return known

    def lease(self, blocks: NDArray[np.int64]) -> AbstractContextManager[bool]:
        return self.cache.lease(self.source, blocks)

    def prefetch(self, blocks: NDArray[np.int64], waiter: Waiter) -> NDArray[np.int64]:
        return self.cache.prefetch(self.source, blocks, waiter)

    def ask_ahead(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        waiter.expect(part, self.source, blocks)
        self.cache.prefetch_unplanned(self.source, blocks, waiter)

    def foresee(self, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        waiter.foresee(self.source, blocks)

    def demand(self, blocks: NDArray[np.int64], waiter: Waiter) -> AbstractContextManager[None]:
        return self.cache.demand(self.source, blocks, waiter)

    def fit_together(self, blocks: NDArray[np.int64]) -> bool:
        raw_bytes = int(self._dataset.block_raw_bytes(blocks).sum())
        return raw_bytes <= self.cache.together_bytes

    def arrivals(self, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        return self.cache.arrivals(self.source, waiter, timeout_s=timeout_s)

    def rows(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> Rows:
        source = self.source
        return BlockRows(
            source.layout, self.cache.memory, source.slot_of, source.bases, blocks, offsets
        )
