"""Tests of eviction: what is needed last goes first, and no job takes another's part."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.fetch.fetch_queue import FairQueue
from headrace.server.cache.readers import Lease, Plan, Waiter
from headrace.server.cache.source import Source
from support.blocks import CountingStore, add_source, cache_of, demand


def _announce(waiter: Waiter, source: Source, blocks: list[int]) -> None:
    """Say that the next batches read one block each."""
    for block in blocks:
        waiter.plan_batch()
        waiter.will_read(source, np.array([block]))


def _read_all(cache: BlockCache, source: Source, blocks: list[int], waiter: Waiter) -> None:
    for block in blocks:
        waiter.begin_batch()
        demand(cache, source, [block], waiter)


def _fewest_fetches(blocks: list[int], capacity: int) -> int:
    """Count the fetches of the best cache there can be, with all of the future known."""
    held: set[int] = set()
    fetches = 0
    for index, block in enumerate(blocks):
        if block in held:
            continue
        fetches += 1
        if len(held) == capacity:
            rest = blocks[index:]
            held.remove(max(held, key=lambda held_block: _distance(rest, held_block)))
        held.add(block)
    return fetches


def _distance(rest: list[int], block: int) -> int:
    return rest.index(block) if block in rest else len(rest)


def test_what_is_foreseen_is_kept_before_it_is_asked_for() -> None:
    """A block that comes in a batch far ahead outlives those that nobody will read."""
    store = CountingStore()
    with cache_of(store, blocks=3, threads=1) as (cache, source):
        waiter = cache.readers.waiter()
        demand(cache, source, [1], waiter)
        waiter.foresee_batch()
        waiter.foresee(source, np.array([1]))
        _read_all(cache, source, list(range(10, 20)), waiter)
        # Also when it is planned, and not asked for yet.
        waiter.plan_batch()
        _read_all(cache, source, list(range(20, 30)), cache.readers.waiter())

        assert source.is_cached(np.array([1])).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=40), st.integers(1, 5))
def test_a_known_future_costs_the_fewest_fetches(blocks: list[int], capacity: int) -> None:
    """A stream that says what it will read causes as few fetches as any cache could."""
    store = CountingStore()
    with cache_of(store, blocks=capacity, threads=1) as (cache, source):
        waiter = cache.readers.waiter()
        _announce(waiter, source, blocks)
        _read_all(cache, source, blocks, waiter)

    assert _fewest_fetches(blocks, capacity) == len(store.reads)


def test_what_nobody_will_read_goes_before_what_somebody_will() -> None:
    """A block read a moment ago goes before one that another stream has announced."""
    store = CountingStore()
    with cache_of(store, blocks=2, threads=1) as (cache, source):
        one, two = cache.readers.waiter(), cache.readers.waiter()
        demand(cache, source, [1], one)
        demand(cache, source, [2], one)
        _announce(two, source, [1])
        demand(cache, source, [3], one)
        demand(cache, source, [1], two)

    assert [1, 2, 3] == store.reads


def test_a_block_asked_for_after_the_ranking_stays() -> None:
    """Victims are worked out ahead; one that a stream announces meanwhile is passed over."""
    store = CountingStore()
    with cache_of(store, blocks=64, threads=1) as (cache, source):
        waiter = cache.readers.waiter()
        for block in range(68):
            demand(cache, source, [block], waiter)
        assert cache._space._victims._ranked
        waiter.plan_batch()
        assert cache.readers.will_read(source, np.array([1, 2]), waiter)
        demand(cache, source, [100, 101], waiter)

        assert source.is_cached(np.array([1, 2])).all()
        assert not source.is_cached(np.array([3, 4])).any()


@pytest.mark.timeout(30)
def test_blocks_that_are_asked_for_while_they_are_ranked_still_go() -> None:
    """Streams ask without the cache's lock; of blocks that nobody reads one goes all the same.

    Otherwise a block that has come waits for room, and nobody is left whose end would wake it.
    """
    store = CountingStore()
    with cache_of(store, blocks=4, threads=1) as (cache, source):
        asked = []

        class Hurried(Waiter):
            """Asks for all blocks at the moment at which another stream's block needs room."""

            def plan(self) -> list[Plan]:
                asked.append(cache._slots.ask(source.slot_of, np.arange(4)))
                return super().plan()

        waiter = cache.readers.waiter()
        demand(cache, source, [0, 1, 2, 3], waiter)
        cache.readers.join(Hurried(cache._lock), None)
        demand(cache, source, [4], waiter)

        assert asked == [True]
        assert source.is_cached(np.array([4])).all()


@pytest.mark.parametrize("announces", [False, True])
def test_a_huge_job_leaves_a_small_one_its_part(*, announces: bool) -> None:
    """A scan of 500 blocks through a cache of 10 never costs another job its 3 blocks."""
    store, small = CountingStore(), CountingStore()
    with cache_of(store, blocks=10) as (cache, source):
        own = add_source(cache, small)
        huge, modest = cache.readers.waiter("huge"), cache.readers.waiter("modest")
        demand(cache, own, [1, 2, 3], modest)
        for start in range(0, 500, 5):
            blocks = list(range(start, start + 5))
            if announces:
                _announce(huge, source, blocks)
                for _ in blocks:
                    huge.begin_batch()
            demand(cache, source, blocks, huge)
        demand(cache, own, [1, 2, 3], modest)

    assert [1, 2, 3] == sorted(small.reads)


def test_what_a_job_leaves_free_is_anyones() -> None:
    """Beside an idle job and a gone one, a job has the whole cache but for what they hold."""
    store = CountingStore()
    with cache_of(store, blocks=10, threads=1) as (cache, source):
        gone, idle, busy = map(cache.readers.waiter, ("gone", "idle", "busy"))
        demand(cache, source, [900, 901, 902], gone)
        demand(cache, source, [800], idle)
        cache.readers.leave(gone)
        for _ in range(3):
            demand(cache, source, list(range(9)), busy)

        assert 10 + 3 == len(store.reads)
        assert source.is_cached(np.array([800])).all()


def test_what_is_read_again_and_again_holds_nobody_up() -> None:
    """A block waits for those who read when it came, not for all who begin to read meanwhile.

    Else each block of jobs that fill their parts waits a second, and the machine counts pins.
    """
    store = CountingStore()
    with cache_of(store, blocks=10, threads=1) as (cache, source):
        for job, blocks in {"a": [1, 2, 3], "b": [11, 12, 13], "c": [21, 22, 23, 24]}.items():
            demand(cache, source, blocks, cache.readers.waiter(job))
        arrived = threading.Event()
        fourth = cache.readers.waiter("a")

        def ask() -> None:
            demand(cache, source, [4], fourth)
            arrived.set()

        # What lies outside of any part is read all the time, so that only parts are left.
        with Lease(cache.readers, source, np.array([21, 22, 23, 24])):
            thread = threading.Thread(target=ask, name="test-fourth")
            thread.start()
            for _ in range(150):
                with Lease(cache.readers, source, np.array([1])):
                    if arrived.wait(0.005):
                        break
            soon = arrived.is_set()
        thread.join(60)

    assert soon


def test_jobs_take_turns_at_the_store() -> None:
    """A job's two blocks do not wait behind another's hundred; nothing is lost or repeated."""
    queue = FairQueue[str]()
    for index in range(100):
        queue.put(f"huge {index}", job=1)
    queue.put("small 0", job=2)
    queue.put("small 1", job=2)

    taken = [queue.take() for _ in range(102)]

    assert ["huge 0", "small 0", "huge 1", "small 1", "huge 2"] == taken[:5]
    assert 102 == len(set(taken))
    assert queue.take() is None
