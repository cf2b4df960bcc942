"""The blocks of one dataset as the cache sees them, and those on their way into it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.server._block import BlockLayout

ABSENT = 0
IN_FLIGHT = -1


class BlockReader(Protocol):
    """What the cache needs of a dataset."""

    def read_block(self, block: int) -> pa.RecordBatch:
        """Fetch, verify and decode one block."""


class Source:
    """The blocks of one dataset as the cache sees them.

    Attributes:
        reader: Fetches them.
        layout: How they lie when decoded.
        removed: The dataset has left the cache; nothing of it is fetched any more.
    """

    def __init__(
        self, index: int, reader: BlockReader, layout: BlockLayout, block_count: int
    ) -> None:
        self.index = index
        self.reader = reader
        self.layout = layout
        self.removed = False
        # The slot of each block; 0 if it is not cached, -1 if it is being fetched. Zeros of fresh
        # memory cost nothing until touched, so this stays small however many blocks there are.
        self.slot_of = np.zeros(block_count, np.int32)
        self.bases = np.zeros((len(layout.parts), 0), np.int64)

    def set_bases(self, slot: int, bases: tuple[int, ...], *, capacity: int) -> None:
        """Note where the parts of a block begin."""
        if self.bases.shape[1] <= slot:
            # Readers go on with the old table, which holds all that they have pinned.
            grown = np.zeros((len(self.layout.parts), capacity), np.int64)
            grown[:, : self.bases.shape[1]] = self.bases
            self.bases = grown
        self.bases[:, slot] = bases


class Waiter:
    """One stream as the cache sees it.

    Attributes:
        gone: The stream has ended: what it asked for ahead of need is not fetched any more.
        interrupted: The stream should stop waiting and look why.
        arrived: Blocks that it waits for and that came, pinned.
        handed: Those of them that it is copying from, pinned.
        error: Why a block that it waits for will not come.
    """

    __slots__ = ("arrived", "error", "gone", "handed", "interrupted", "wake")

    def __init__(self, lock: threading.Lock) -> None:
        self.wake = threading.Condition(lock)
        self.gone = False
        self.interrupted = False
        self.arrived: list[int] = []
        self.handed: list[int] = []
        self.error: HeadraceError | None = None

    def interrupt(self) -> None:
        """End the stream's wait, now and for ever; any thread may call it."""
        with self.wake:
            self.interrupted = True
            self.wake.notify_all()


@dataclass(slots=True, eq=False)
class Flight:
    """A block on its way into the cache.

    Attributes:
        source: The block's dataset.
        block: Its ordinal.
        owners: The streams that asked for it ahead of need.
        demands: The streams that wait for it.
        is_running: Whether a thread has begun to fetch it.
    """

    source: Source
    block: int
    owners: list[Waiter] = field(default_factory=list)
    demands: list[Waiter] = field(default_factory=list)
    is_running: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether anyone still wants the block."""
        return bool(self.demands) or any(not owner.gone for owner in self.owners)
