"""A counting store of small blocks, and a cache over it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError, ShardCorruptError
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.gather import BlockRows
from headrace.server.cache.readers import Waiter
from headrace.server.cache.source import Source
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import wire_column
from headrace.server.telemetry.metrics import Metrics
from headrace.storage import ReadBlock

ROWS = 100
BLOCK_BYTES = (ROWS + 1) * 8


class CountingStore:
    """Blocks of numbers; what `failures` holds is raised, once each, in order."""

    def __init__(self, failures: list[HeadraceError] | None = None) -> None:
        self.reads: list[int] = []
        self.failures = failures or []
        self.gate = threading.Event()
        self.gate.set()

    def read_block(self, block: int) -> pa.RecordBatch:
        """Return a block whose every value is its number."""
        assert self.gate.wait(60)
        self.reads.append(block)
        if self.failures:
            raise self.failures.pop(0)
        return pa.RecordBatch.from_arrays([pa.array([block] * ROWS, pa.int64())], names=["x"])


class RunStore(CountingStore):
    """The same, whose neighbouring blocks come together; `bad` ones have an error instead."""

    def __init__(self, *, bad: set[int] | None = None) -> None:
        super().__init__()
        self.runs: list[list[int]] = []
        self.bad = bad or set()

    def run_blocks(self, max_bytes: int) -> int:
        """Return four, whatever they take."""
        del max_bytes
        return 4

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Note a run, and return its blocks."""
        assert self.gate.wait(60)
        self.runs.append(list(blocks))
        for block in blocks:
            if block in self.bad:
                yield ReadBlock(block, ShardCorruptError(f"block {block}"))
            else:
                yield ReadBlock(block, self.read_block(block))


@contextmanager
def cache_of(
    store: CountingStore, *, blocks: float = 10.0, threads: int = 3
) -> Iterator[tuple[BlockCache, Source]]:
    """Open a cache with room for so many blocks of a store."""
    size = int(blocks * (BLOCK_BYTES + 64))
    cache = BlockCache(size, fetch_threads=threads, observer=Metrics())
    try:
        yield cache, add_source(cache, store)
    finally:
        store.gate.set()
        cache.close()


def add_source(cache: BlockCache, store: CountingStore, *, memory_bytes: int = 0) -> Source:
    """Add a store's blocks to a cache, with the number of bytes that they are said to take."""
    layout = block_layout([wire_column(pa.field("x", pa.int64(), nullable=False))])
    return cache.add_source(store, layout, block_count=1000, memory_bytes=memory_bytes)


def demand(cache: BlockCache, source: Source, blocks: list[int], waiter: Waiter) -> list[int]:
    """Wait for blocks and return the first value of each, a number, as the arena has it."""
    layout = source.layout
    at = layout.fields[0].offset
    values: dict[int, int] = {}
    missing = set(blocks)
    with cache.demand(source, np.array(blocks), waiter):
        while missing:
            arrived = cache.arrivals(source, waiter, timeout_s=60)
            assert arrived.size
            slot_of, bases, first = source.slot_of, source.bases, np.zeros_like(arrived)
            rows = BlockRows(source.layout, cache.memory, slot_of, bases, arrived, first)
            out = np.empty((arrived.size, layout.parts[0].row_bytes), np.uint8)
            rows.packed(out)
            firsts = out[:, at : at + 8].copy().view(np.int64)[:, 0]
            values.update(zip(arrived.tolist(), firsts.tolist(), strict=True))
            missing -= set(arrived.tolist())
    return [values[block] for block in blocks]
