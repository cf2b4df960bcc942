"""The blocks of one dataset, and a stream that reads them, as the cache sees them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.server.cache.fetch.block_runs import BlockReader
from headrace.server.cache.memory.shared_memory import SourceTables
from headrace.server.layout.block_layout import BlockLayout

ABSENT = 0
IN_FLIGHT = -1


class Source:
    """The blocks of one dataset as the cache sees them.

    Attributes:
        reader: Fetches them.
        layout: How they lie when decoded.
        on_removed: Called once when it has.
        run_blocks: How many neighbouring blocks are best read together, at most.
        removed: The dataset has left the cache; nothing of it is fetched any more.
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
    ) -> None:
        self.index = index
        self.run_blocks = run_blocks
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
            # Readers go on with the old table, which holds all that they have pinned.
            grown = np.zeros((len(self.layout.parts), capacity), np.int64)
            grown[:, : self.bases.shape[1]] = self.bases
            self.bases = grown
        self.bases[:, slot] = bases


Plan: TypeAlias = "list[tuple[Source, NDArray[np.int64]]]"
"""The blocks of one batch, by dataset."""

# How much of a stream's pace the last batch decides (arbitrary).
_PACE_WEIGHT = 0.2


class Waiter:
    """One stream as the cache sees it.

    Attributes:
        job: Streams of one job read the same blocks at about the same time.
        period_s: Time between two of its batches, of late.
        gone: The stream has ended: what it asked for ahead of need is not fetched any more.
        interrupted: The stream should stop waiting and look why.
        arrived: Blocks that it waits for and that came, pinned.
        handed: Those of them that it is copying from, pinned.
        error: Why a block that it waits for will not come.
    """

    __slots__ = (
        "_batches",
        "_took_at",
        "arrived",
        "error",
        "gone",
        "handed",
        "interrupted",
        "job",
        "period_s",
        "wake",
    )

    def __init__(self, lock: threading.Lock, *, job: int = 0) -> None:
        self.wake = threading.Condition(lock)
        self.job = job
        self.period_s = 1.0
        self.gone = False
        self.interrupted = False
        self.arrived: list[int] = []
        self.handed: list[int] = []
        self.error: HeadraceError | None = None
        # The batch that is being read, then those that follow.
        self._batches: deque[Plan] = deque([[]])
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
        """End the stream's wait, now and for ever; any thread may call it."""
        with self.wake:
            self.interrupted = True
            self.wake.notify_all()

    def plan_batch(self, count: int = 1) -> None:
        """Let what is asked for from now on belong to one batch more, the last of ``count``."""
        self._batches.extend([[] for _ in range(count)])

    def will_read(self, source: Source, blocks: NDArray[np.int64]) -> None:
        """Note blocks of the batch planned last."""
        self._batches[-1].append((source, blocks))

    def begin_batch(self, count: int = 1) -> None:
        """Go on to the next batch, or to the last of so many that are read together."""
        for _ in range(min(count, len(self._batches) - 1)):
            self._batches.popleft()
        now = time.monotonic()
        if self._took_at:
            self.period_s += _PACE_WEIGHT * ((now - self._took_at) / count - self.period_s)
        self._took_at = now

    def plan(self) -> list[Plan]:
        """Return what it will read, the batch that is being read first; any thread may ask."""
        return list(self._batches)
