"""Tests of the cache: one fetch a block, an exact budget, no error kept."""

from __future__ import annotations

import threading
import weakref
from contextlib import closing

import numpy as np
import pytest

from headrace.errors import (
    ConfigurationError,
    DrainingError,
    RebalanceError,
    StoreUnavailableError,
)
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.memory.slot_table import SlotTable
from headrace.server.cache.readers import Lease
from headrace.server.cache.source import Source
from headrace.server.telemetry.metrics import Metrics
from support.blocks import BLOCK_BYTES, CountingStore, add_source, cache_of, demand
from support.no_threads import few_threads
from support.threads import threads_of
from support.waiting import until


def test_a_block_is_fetched_once_for_all() -> None:
    """Eight streams that want the same blocks at once cause one fetch of each."""
    store = CountingStore()
    store.gate.clear()
    seen: list[list[int]] = []
    with cache_of(store) as (cache, source):

        def ask(_: int) -> None:
            seen.append(demand(cache, source, [5, 6, 7], cache.readers.waiter()))

        with threads_of(ask, range(8)):
            store.gate.set()

    assert [[5, 6, 7]] * 8 == seen
    assert [5, 6, 7] == sorted(store.reads)


def test_a_closed_cache_keeps_no_memory() -> None:
    """Also where something still refers to it: the collector may come hours later."""
    store = CountingStore()
    with cache_of(store) as (cache, source):
        demand(cache, source, [5], cache.readers.waiter())
        memory = weakref.ref(cache.memory.array)
        assert memory() is not None

    assert memory() is None
    # Not as if its blocks were damaged, at which a client would give up.
    with pytest.raises(DrainingError, match=r"has shut down; try another"):
        len(cache.memory.array)


def test_the_budget_holds_while_blocks_come_and_go() -> None:
    """A cache of three blocks serves a hundred, right each time, and is never larger."""
    store = CountingStore()
    with cache_of(store, blocks=3.0) as (cache, source):
        waiter = cache.readers.waiter()
        for start in range(0, 100, 10):
            wanted = list(range(start, start + 10))
            assert wanted == demand(cache, source, wanted, waiter)
            assert cache.used_bytes <= 3 * (BLOCK_BYTES + 64)
            assert 0 == int(cache._slots.pins.sum())


def test_what_was_used_last_stays() -> None:
    """Least recently used goes first."""
    store = CountingStore()
    with cache_of(store, blocks=3.0, threads=1) as (cache, source):
        waiter = cache.readers.waiter()
        for block in (1, 2, 3, 1, 4):
            demand(cache, source, [block], waiter)
        with Lease(cache.readers, source, np.array([1, 3, 4])) as is_whole:
            assert is_whole
        with Lease(cache.readers, source, np.array([2])) as is_whole:
            assert not is_whole


def test_an_error_is_not_kept() -> None:
    """The stream that waits gets the error; the next one fetches again and gets the block."""
    store = CountingStore([StoreUnavailableError("down")])
    with cache_of(store) as (cache, source):
        with pytest.raises(StoreUnavailableError, match="down"):
            demand(cache, source, [1], cache.readers.waiter())

        assert [1] == demand(cache, source, [1], cache.readers.waiter())
    assert [1, 1] == store.reads


def test_an_error_ahead_of_need_is_nobodys() -> None:
    """A prefetch that fails is forgotten; the block is fetched again when it is needed."""
    store = CountingStore([StoreUnavailableError("down")])
    with cache_of(store, threads=1) as (cache, source):
        waiter = cache.readers.waiter()
        cache.prefetch(source, np.array([1]), waiter)
        while cache._fetches.all():
            threading.Event().wait(0.001)

        assert [1] == demand(cache, source, [1], waiter)
    assert [1, 1] == store.reads


def test_what_a_gone_stream_asked_for_is_not_fetched() -> None:
    """Queued prefetches of a stream that left are dropped; those another wants are kept."""
    store = CountingStore()
    store.gate.clear()
    with cache_of(store, threads=1) as (cache, source):
        gone, here = cache.readers.waiter(), cache.readers.waiter()
        asked = cache.prefetch(source, np.arange(20), gone)
        assert list(range(20)) == asked.tolist()
        assert [] == cache.prefetch(source, np.array([7]), here).tolist()
        cache.readers.leave(gone)
        store.gate.set()
        assert [99] == demand(cache, source, [99], here)
        assert [7] == demand(cache, source, [7], here)
        with Lease(cache.readers, source, np.array([15])) as is_whole:
            assert not is_whole

    assert {7, 99} <= set(store.reads) <= {0, 7, 99}


def test_a_demanded_block_overtakes_the_queue() -> None:
    """What a stream waits for is fetched before what others asked for ahead."""
    store = CountingStore()
    store.gate.clear()
    with cache_of(store, threads=1) as (cache, source):
        waiter = cache.readers.waiter()
        cache.prefetch(source, np.arange(10), waiter)
        thread = threading.Thread(
            target=lambda: demand(cache, source, [9], cache.readers.waiter()), name="test"
        )
        thread.start()
        while not any(fetch.block == 9 and fetch.demands for fetch in cache._fetches.all()):
            threading.Event().wait(0.001)
        store.gate.set()
        thread.join(60)
        demand(cache, source, list(range(10)), waiter)

    assert 9 in store.reads[:2]
    assert list(range(10)) == sorted(store.reads)


def test_a_block_larger_than_the_cache_says_so() -> None:
    """The message has both sizes and the setting to change."""
    with (
        cache_of(CountingStore(), blocks=0.5) as (cache, source),
        pytest.raises(ConfigurationError, match=r"a block of 808 bytes .* larger cache_bytes"),
    ):
        demand(cache, source, [1], cache.readers.waiter())


def test_a_lease_is_all_or_nothing() -> None:
    """If one block lacks, none is pinned."""
    with cache_of(CountingStore()) as (cache, source):
        demand(cache, source, [1, 2], cache.readers.waiter())
        with Lease(cache.readers, source, np.array([1, 2, 3])) as is_whole:
            assert not is_whole
            assert 0 == int(cache._slots.pins.sum())
        with Lease(cache.readers, source, np.array([1, 2])) as is_whole:
            assert is_whole
            assert 2 == int(cache._slots.pins.sum())


def test_a_removed_source_leaves_nothing() -> None:
    """Its blocks go at once, a block being read when its reader is done, and none comes back."""
    store = CountingStore()
    with cache_of(store) as (cache, source):
        other = cache.add_source(store, source.layout, block_count=10)
        waiter = cache.readers.waiter()
        demand(cache, source, [1, 2, 3], waiter)
        demand(cache, other, [1], waiter)
        with Lease(cache.readers, source, np.array([2])) as is_whole:
            assert is_whole
            cache.remove_source(source)
            assert 2 == cache._slots.count

        assert 1 == cache._slots.count
        assert not source.is_cached(np.arange(5)).any()
        assert other.is_cached(np.array([1])).all()
        assert [] == cache.prefetch(source, np.array([1]), waiter).tolist()
        with pytest.raises(RebalanceError, match="reconnect"):
            demand(cache, source, [1], waiter)
        cache.remove_source(source)
        assert [2] == demand(cache, other, [2], waiter)


def test_removing_a_source_ends_its_waits_and_reads() -> None:
    """Who waits for it is asked to reconnect; it is gone only when the last read has ended."""
    store = CountingStore()
    store.gate.clear()
    raised: list[BaseException] = []

    def wait(cache: BlockCache, source: Source) -> None:
        try:
            demand(cache, source, [1, 2, 3], cache.readers.waiter())
        except RebalanceError as error:
            raised.append(error)

    with cache_of(store, threads=1) as (cache, source):
        waiting = threading.Thread(target=wait, args=(cache, source), name="test-wait")
        waiting.start()
        while not any(fetch.is_running for fetch in cache._fetches.all()):
            threading.Event().wait(0.001)
        removing = threading.Thread(target=cache.remove_source, args=(source,), name="test-remove")
        removing.start()
        waiting.join(60)
        assert 1 == len(raised)
        assert removing.is_alive()
        store.gate.set()
        removing.join(60)
        assert not removing.is_alive()

    assert 1 == len(store.reads)
    assert 0 == cache.used_bytes


def test_a_wait_ends_with_thecache_of() -> None:
    """Whoever waits when the cache closes is told that the server drains."""
    store = CountingStore()
    store.gate.clear()
    raised: list[BaseException] = []

    def wait(cache: BlockCache, source: Source) -> None:
        try:
            demand(cache, source, [1], cache.readers.waiter())
        except DrainingError as error:
            raised.append(error)

    with cache_of(store) as (cache, source):
        thread = threading.Thread(target=wait, args=(cache, source), name="test")
        thread.start()
        while not cache._fetches.all():
            threading.Event().wait(0.001)
        closer = threading.Thread(target=cache.close, name="test-close")
        closer.start()
        thread.join(60)
        store.gate.set()
        closer.join(60)

    assert 1 == len(raised)


def test_the_table_of_slots_grows() -> None:
    """There may be any number of blocks; slot 0 is none."""
    table = SlotTable()

    slots = [table.add(source=0, block=n, offset=n, length=1) for n in range(1000)]
    table.pin(np.array(slots[1:]))

    assert 1000 == len({*slots} - {0})
    assert [slots[0]] == table.unpinned().tolist()
    assert 1000 == table.bytes_of(0)


def test_threads_end_if_not_all_of_them_can_be_started() -> None:
    """Those that were started for a store do not stay; the next attempt starts all of them."""
    cache = BlockCache(1 << 20, fetch_threads=8, observer=Metrics())
    before = set(threading.enumerate())
    with closing(cache):
        with few_threads(2), pytest.raises(RuntimeError, match="thread"):
            add_source(cache, CountingStore())
        assert until(lambda: not set(threading.enumerate()) - before)

        source = add_source(cache, CountingStore())
        assert [5] == demand(cache, source, [5], cache.readers.waiter())
