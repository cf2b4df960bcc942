"""The blocks of a dataset, as the cache and as a stream see them, and how they are pinned."""

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
from headrace.server.cache.fetch.block_runs import BlockReader
from headrace.server.cache.gather import Rows, gather_part
from headrace.server.cache.memory.arena import Memory
from headrace.server.cache.memory.shared_memory import SourceTables
from headrace.server.layout.block_layout import BlockLayout
from headrace.storage import OpenDataset

if TYPE_CHECKING:
    from headrace.server.cache.block_cache import BlockCache

ABSENT = 0
IN_FLIGHT = -1


@dataclass(slots=True)
class Growth:
    """Counts how often a cache has made a table of bases again, because it was too short.

    Attributes:
        times: How often.
    """

    times: int = 0


class Source:
    """The blocks of one dataset as the cache sees them.

    Attributes:
        reader: Fetches them.
        layout: How they lie when decoded.
        on_removed: Called once when the dataset has left the cache.
        run_blocks: How many neighbouring blocks are best read together, at most.
        store: Names the store that it is read from.
        removed: The dataset has left the cache; nothing of it is fetched any more.
        growth: Counts when `bases` becomes another table; the cache gives all its datasets one.
    """

    def __init__(
        self,
        index: int,
        reader: BlockReader,
        layout: BlockLayout,
        block_count: int,
        *,
        on_removed: Callable[[], None] | None = None,
        tables: SourceTables | None = None,
        run_blocks: int = 1,
        store: str = "",
    ) -> None:
        self.index = index
        self.growth = Growth()
        self.run_blocks = run_blocks
        self.store = store
        self.reader = reader
        self.layout = layout
        self.removed = False
        self.on_removed = on_removed
        # The slot of each block; 0 if it is not cached, -1 if it is being fetched. Zeros of fresh
        # memory cost nothing until touched, so this stays small however many blocks there are.
        self.slot_of = np.zeros(block_count, np.int32) if tables is None else tables.slot_of
        self.bases = np.zeros((len(layout.parts), 0), np.int64) if tables is None else tables.bases

    def set_bases(self, slot: int, bases: tuple[int, ...], *, capacity: int) -> None:
        """Note where the parts of a block begin."""
        if self.bases.shape[1] <= slot:
            # Readers continue with the old table, which holds all that they have pinned.
            grown = np.zeros((len(self.layout.parts), capacity), np.int64)
            grown[:, : self.bases.shape[1]] = self.bases
            self.bases = grown
            self.growth.times += 1
        self.bases[:, slot] = bases

    def slots(self, blocks: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the slot of each block; not above 0 if it is not cached."""
        return self.slot_of[blocks]


class Slots(Protocol):
    """What says where the blocks of one dataset, or of several, lie."""

    def slots(self, blocks: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the slot of each block; not above 0 if it is not cached."""


Plan: TypeAlias = "list[tuple[Slots, NDArray[np.int64]]]"
"""The blocks of one batch, by what says where they lie."""

# The weight of the last batch in a stream's pace (arbitrary).
_PACE_WEIGHT = 0.2


class JobAhead:
    """What the streams of one job have asked for ahead of need; safe for several threads.

    They read the same blocks. Alone, each would see that another has asked for the next blocks, and
    would ask for those after them. Together they would ask for more than fits, and push out blocks
    that are still needed.

    Attributes:
        streams: How many it has open.
        asked_bytes: Stored bytes that they asked for, of batches that none has taken yet.
    """

    def __init__(self, *, streams: int = 0) -> None:
        self._lock = threading.Lock()
        self.streams = streams
        self.asked_bytes = 0

    def change(self, *, asked_bytes: int = 0, streams: int = 0) -> None:
        """Count streams, and bytes that they asked for or took."""
        with self._lock:
            self.asked_bytes += asked_bytes
            self.streams += streams


class JobsAhead:
    """Those of all jobs that have a stream; not safe for several threads."""

    def __init__(self) -> None:
        self._jobs: weakref.WeakValueDictionary[Hashable, JobAhead] = weakref.WeakValueDictionary()

    def of(self, job: Hashable) -> JobAhead:
        """Return that of a job."""
        found = self._jobs.get(job)
        if found is None:
            found = self._jobs[job] = JobAhead()
        return found


class Filling(Protocol):
    """What a cache says of its memory."""

    @property
    def is_filling(self) -> bool:
        """Whether blocks may have to go soon."""


@dataclass(slots=True)
class Flag:
    """The same as a value, which is read without a call.

    Attributes:
        is_filling: Whether blocks may have to go soon.
    """

    is_filling: bool = False


NEVER_FILLING = Flag()
"""Of a stream that is in no cache."""


class Waiter:
    """One stream as the cache sees it.

    Attributes:
        job: Streams of one job read the same blocks at about the same time.
        period_s: The recent time between two of its batches.
        taken: Batches that it has begun.
        ahead: What all streams of the job have asked for ahead of need.
        asked_bytes: Its own part of that.
        filling: Says whether blocks may have to go soon, so that it should say what it will read.
        gone: The stream has ended: what it asked for ahead of need is not fetched any more.
        interrupted: The stream should stop waiting and look why.
        arrived: Blocks that it waits for and that came, pinned.
        handed: Those of them that it is copying from, pinned.
        error: Why a block that it waits for will not arrive.
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
        # The batch that is being read, then those that follow.
        self._batches: deque[Plan] = deque([[]])
        # Those that follow in turn, whose blocks it has not asked for yet.
        self._foreseen: deque[Plan] = deque()
        # What batches will read that are not planned yet, by what they belong to.
        self._expected: dict[Hashable, Plan] = {}
        self._took_at = 0.0

    def deliver(self, block: int) -> None:
        """Hand a block over that is pinned for the stream; the caller holds the cache's lock."""
        self.arrived.append(block)
        self.wake.notify_all()

    def fail(self, error: HeadraceError) -> None:
        """Say that a block will not come; the caller holds the cache's lock."""
        self.error = error
        self.wake.notify_all()

    def interrupt(self) -> None:
        """End the stream's wait, now and for good; any thread may call it."""
        with self.wake:
            self.interrupted = True
            self.wake.notify_all()

    def ask_bytes(self, size: int) -> None:
        """Count bytes that it asked for ahead of need; a negative size for bytes that it took."""
        self.asked_bytes += size
        self.ahead.change(asked_bytes=size)

    def join(self, ahead: JobAhead, filling: Filling) -> None:
        """Belong to a job, in a cache."""
        self.ahead, self.filling = ahead, filling
        ahead.change(streams=1)

    def leave(self) -> None:
        """Withdraw all that it asked for; any thread may call this, once."""
        self.gone = True
        self.ahead.change(streams=-1, asked_bytes=-self.asked_bytes)

    def plan_batch(self, count: int = 1) -> None:
        """Assign what is asked for from now on to one more batch, the last of ``count``."""
        while self._foreseen and count:
            # What was foreseen of it stays, or it would be forgotten until it is asked for.
            self._batches.append(self._foreseen[0])
            self._foreseen.popleft()
            count -= 1
        self._batches.extend([[] for _ in range(count)])

    def foresee_batch(self) -> None:
        """Assign what is foreseen from now on to one more batch, after all others."""
        self._foreseen.append([])

    def foresee(self, source: Slots, blocks: NDArray[np.int64]) -> None:
        """Note blocks of the batch foreseen last, which are not asked for yet."""
        self._foreseen[-1].append((source, blocks))

    def expect(self, part: Hashable, source: Slots, blocks: NDArray[np.int64]) -> None:
        """Note blocks that some batch will read which is not planned yet.

        Args:
            part: The key by which `forget` names them.
            source: Their dataset.
            blocks: Which.
        """
        self._expected = {**self._expected, part: [*self._expected.get(part, []), (source, blocks)]}

    def forget(self, part: Hashable) -> None:
        """Forget what is expected of a part that has been read."""
        self._expected = {each: plan for each, plan in self._expected.items() if each != part}

    def will_read(self, source: Slots, blocks: NDArray[np.int64]) -> None:
        """Note blocks of the batch planned last."""
        self._batches[-1].append((source, blocks))

    def begin_batch(self, count: int = 1) -> None:
        """Advance to the next batch, or to the last of several that are read together."""
        for _ in range(min(count, len(self._batches) - 1)):
            self._batches.popleft()
        now = time.monotonic()
        if self._took_at:
            self.period_s += _PACE_WEIGHT * ((now - self._took_at) / count - self.period_s)
        self._took_at = now
        self.taken += count

    def plan(self) -> list[Plan]:
        """Return what it will read, the batch that is being read first; any thread may ask."""
        # In this order: a batch that goes from one to the other meanwhile comes twice.
        foreseen = list(self._foreseen)
        return [*self._batches, *foreseen]

    def expected(self) -> Plan:
        """Return what will be read after that, or is in it too; any thread may ask."""
        return [each for plan in self._expected.values() for each in plan]


_Pinned = TypeVar("_Pinned")


class Lease(Generic[_Pinned]):
    """Pins blocks while its context lasts, all of them or none; entering says which.

    A class, because one a batch as a generator costs 2 us.

    Args:
        pin: Pins the blocks, and returns what `unpin` needs; None if they are not all there.
        unpin: Gives the pins back.
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


class BlockRows:
    """The samples of one batch as they lie in pinned blocks.

    Args:
        layout: How the blocks lie.
        memory: The arena.
        slot_of: ``(blocks,) int32``: the slot of each block of the dataset.
        bases: ``(parts, slots) int64``: where each part of the block in a slot begins.
        blocks: ``(samples,) int64``: the block of each sample.
        offsets: ``(samples,) int64``: its place in that block.
    """

    __slots__ = ("bases", "blocks", "layout", "memory", "offsets", "slot_of")

    def __init__(
        self,
        layout: BlockLayout,
        memory: Memory,
        *,
        slot_of: NDArray[np.int32],
        bases: NDArray[np.int64],
        blocks: NDArray[np.int64],
        offsets: NDArray[np.int64],
    ) -> None:
        self.memory = memory
        self.layout = layout
        self.slot_of = slot_of
        self.bases = bases
        self.blocks = blocks
        self.offsets = offsets

    def packed(self, out: NDArray[np.uint8]) -> None:
        """Gather the packed rows into ``(samples, row_bytes) uint8``."""
        self.wide(0, out)

    def wide(self, part: int, out: NDArray[np.uint8], *, first: int = 0) -> None:
        """Gather one part of the samples from ``first`` on into ``(n, row_bytes) uint8``."""
        own = slice(first, first + len(out))
        # Plain indexing takes twice as long.
        slots = np.take(self.slot_of, self.blocks[own], mode="clip")
        bases = np.take(self.bases[part], slots, mode="clip")
        gather_part(self.memory, self.layout.parts[part], bases, self.offsets[own], out)


class Blocks(Protocol):
    """What a stream needs of the cache; `headrace.server.cache.block_cache` holds the contract."""

    @property
    def layout(self) -> BlockLayout:
        """How the samples lie in the rows that `rows` returns."""

    def waiter(self, job: Hashable = None) -> Waiter:
        """Return the stream's handle; streams of one job read the same at about the same time."""

    def leave(self, waiter: Waiter) -> None:
        """Forget the stream; it has ended."""

    def stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the size of blocks in the store."""

    def is_cached(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks are in memory just now."""

    def is_known(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks are in memory just now, or on their way."""

    def lease(self, blocks: NDArray[np.int64]) -> AbstractContextManager[bool]:
        """Pin distinct blocks while the context lasts, all or none; say which."""

    def prefetch(self, blocks: NDArray[np.int64], waiter: Waiter) -> NDArray[np.int64]:
        """Ask for blocks ahead of need; return those that were not there or on their way."""

    def ask_ahead(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        """Ask for blocks that some batch will need which is not planned yet.

        They are expected until `Waiter.forget` is told the same part.
        """

    def foresee(self, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        """Note blocks that the batch foreseen last will need, and ask for none."""

    def demand(self, blocks: NDArray[np.int64], waiter: Waiter) -> AbstractContextManager[None]:
        """Fetch blocks, which `arrivals` hands out while the context lasts."""

    def arrivals(self, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        """Wait for demanded blocks; return those that came, pinned until the next call."""

    def fit_together(self, blocks: NDArray[np.int64]) -> bool:
        """Return whether the cache has room to wait for all of some blocks."""

    def rows(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> Rows:
        """Return samples that lie in pinned blocks."""


class DatasetBlocks:
    """The blocks of one dataset.

    Attributes:
        cache: See below.
        source: See below.

    Args:
        cache: Holds them.
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
        return self.cache.is_cached(self.source, blocks)

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
        return self.cache.rows(self.source, blocks, offsets)
