"""The blocks of one dataset as the cache sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.fetch.block_runs import BlockReader, block_schema
from headrace.server.cache.memory.shared_memory import SourceTables
from headrace.server.cache.stored_blocks import StoredForm, stored_form
from headrace.server.layout.block_layout import BlockLayout

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
        memory_bytes: Bytes of all its blocks in memory, approximately; 0 if unknown.
        growth: Counts replacements of `bases`; all datasets of a cache share it.
        whole: The dataset whose pieces these are; None for a dataset.
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
        whole: Source | None = None,
    ) -> None:
        self.index = index
        self.whole = whole
        self.memory_bytes = 0
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

    @property
    def slot_of(self) -> NDArray[np.int32] | None:
        """The slot of each block, 0 or less if it is not cached; None for several datasets."""

    def slots(self, blocks: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the slot of each block; 0 or less if it is not cached."""
