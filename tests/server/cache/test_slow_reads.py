"""Tests of slow reads: they are asked once more within a budget, and the first answer counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import ShardCorruptError
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.fetch.slow_reads import SlowReads
from headrace.server.cache.source import Source
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import wire_column
from headrace.server.telemetry.metrics import Metrics
from headrace.storage import ReadBlock
from support.blocks import BLOCK_BYTES, ROWS, demand
from support.waiting import until

_STALLED = 500


class _StallingStore:
    """A store whose first reads of one block stall, until they are let go."""

    def __init__(self, *, first_fails: bool = False, stalled: int = 1) -> None:
        self.reads: list[int] = []
        self.gate = threading.Event()
        self.ended = threading.Event()
        self._first_fails = first_fails
        self._stalled = stalled

    def read_block(self, block: int) -> pa.RecordBatch:
        """Return a block whose every value is its number."""
        stalls = block == _STALLED and self.reads.count(block) < self._stalled
        self.reads.append(block)
        if stalls:
            assert self.gate.wait(60)
            self.ended.set()
            if self._first_fails:
                raise ShardCorruptError("the one that stalled")
        return pa.RecordBatch.from_arrays([pa.array([block] * ROWS, pa.int64())], names=["x"])

    def run_blocks(self, max_bytes: int) -> int:
        """Return one."""
        del max_bytes
        return 1

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Read blocks one by one."""
        for block in blocks:
            yield ReadBlock(block, self.read_block(block))


def _opened(store: _StallingStore, name: str) -> tuple[BlockCache, Source]:
    cache = BlockCache(1000 * (BLOCK_BYTES + 64), fetch_threads=4, observer=Metrics())
    layout = block_layout([wire_column(pa.field("x", pa.int64(), nullable=False))])
    return cache, cache.add_source(store, layout, block_count=1000, store=name)


@pytest.mark.parametrize(("stalled", "first_fails"), [(1, False), (1, True), (2, False)])
def test_a_read_that_stalls_is_asked_once_more(stalled: int, *, first_fails: bool) -> None:
    """So is a repeat that stalls as well. Late answers change nothing, nor do their failures."""
    store = _StallingStore(stalled=stalled, first_fails=first_fails)
    cache, source = _opened(store, "s3://bucket")
    try:
        waiter = cache.readers.waiter()
        demand(cache, source, list(range(100)), waiter)

        assert [_STALLED] == demand(cache, source, [_STALLED], waiter)
        assert 1 + stalled == store.reads.count(_STALLED)
        store.gate.set()
        assert store.ended.wait(60)
        until(lambda: not cache._is_reading(source))
        assert [_STALLED] == demand(cache, source, [_STALLED], waiter)
        assert 1 + stalled == store.reads.count(_STALLED)
        assert 101 == cache._slots.count
        assert 0 == int(cache._slots.pins.sum())
        assert 0 == cache._read_budget.held_bytes
    finally:
        store.gate.set()
        cache.close()


def test_a_read_that_stalls_at_the_start_is_asked_again_once_it_is_known_to_be_slow() -> None:
    """It began when no other read had ended, so nobody knew how long reads take."""
    store = _StallingStore()
    cache, source = _opened(store, "s3://bucket")
    try:
        waiter = cache.readers.waiter()

        assert [_STALLED, *range(100)] == demand(cache, source, [_STALLED, *range(100)], waiter)
        assert 2 == store.reads.count(_STALLED)
    finally:
        store.gate.set()
        cache.close()


def test_a_dataset_is_not_closed_under_a_read_that_was_asked_again() -> None:
    """Its reader may be used until the read that stalls has ended too."""
    store = _StallingStore()
    cache, source = _opened(store, "s3://bucket")
    try:
        waiter = cache.readers.waiter()
        demand(cache, source, [*range(100), _STALLED], waiter)
        removal = threading.Thread(target=cache.remove_source, args=(source,))
        removal.start()
        removal.join(0.2)
        assert removal.is_alive()

        store.gate.set()
        removal.join(60)

        assert not removal.is_alive()
        assert 0 == cache.used_bytes
    finally:
        store.gate.set()
        cache.close()


def test_a_local_disk_is_never_asked_again() -> None:
    """What takes long there is the machine itself."""
    slow = SlowReads(is_local=True)
    for _ in range(1000):
        slow.ended(0.001)

    assert float("inf") == slow.threshold_s


def test_no_more_than_one_read_in_twenty_is_asked_again() -> None:
    """However slow all of them are, and however long there was nothing slow before."""
    slow, again = SlowReads(is_local=False), 0
    for _ in range(10_000):
        slow.ended(0.01)
    for _ in range(1000):
        slow.ended(10.0)
        if slow.can_ask_again(10.0):
            slow.asked_again()
            again += 1

    assert again <= 1000 / 20 + 32


def test_some_repeats_are_for_reads_that_stall() -> None:
    """At the start too: nothing else ends while a loop waits for a stalled one."""
    slow, again = SlowReads(is_local=False), 0
    for _ in range(100):
        slow.ended(0.01)
        if slow.can_ask_again(0.1):
            slow.asked_again()
            again += 1
    stalled = 0
    while slow.can_ask_again(1.0):
        slow.asked_again()
        stalled += 1

    # A sum of twentieths may be a little less than one.
    assert 4 <= again <= 5
    assert 4 <= stalled <= 5


def test_the_slowest_reads_are_slow() -> None:
    """Three in a hundred, and nothing that takes less than a tenth of a second."""
    times = np.random.default_rng(1).permutation(np.arange(1.0, 101.0))
    slow, fast = SlowReads(is_local=False), SlowReads(is_local=False)
    for seconds in np.tile(times, 4).tolist():
        slow.ended(seconds)
        fast.ended(seconds / 10_000)

    assert 95.0 <= slow.threshold_s <= 99.0
    assert 0.1 == fast.threshold_s
