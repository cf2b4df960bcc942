"""Tests of the tables of several datasets as one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.cache.joined_sources import JoinedSources
from headrace.server.cache.readers import Lease
from headrace.server.cache.source import Growth, Source
from headrace.server.layout.block_layout import BlockLayout, block_layout
from headrace.server.layout.wire_columns import wire_column
from support.blocks import CountingStore, add_source, cache_of, demand

_SLOTS = 64


def _layout() -> BlockLayout:
    """Return one with two parts."""
    wide = pa.list_(pa.float32(), 100)
    return block_layout(
        [
            wire_column(pa.field("x", pa.int64(), nullable=False)),
            wire_column(pa.field("wide", wide, nullable=False)),
        ]
    )


def _sources(counts: list[int], growth: Growth) -> list[Source]:
    """Return datasets with these numbers of blocks, all cached."""
    sources, slots = [], iter(range(1, 1 + sum(counts)))
    for index, count in enumerate(counts):
        source = Source(index, CountingStore(), _layout(), count)
        source.growth = growth
        for block in range(count):
            slot = next(slots)
            source.set_bases(slot, (1000 * slot, 7000 * slot), capacity=_SLOTS)
            source.slot_of[block] = slot
        sources.append(source)
    return sources


def _joined(sources: list[Source], counts: list[int]) -> JoinedSources:
    firsts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    return JoinedSources(sources, firsts)


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=9),
    chosen=st.lists(st.integers(0, 44), max_size=20),
)
def test_blocks_are_found_in_their_own_datasets(counts: list[int], chosen: list[int]) -> None:
    """Whatever datasets are empty, first, last or between, and in whatever order blocks come."""
    blocks = np.array([block for block in chosen if block < sum(counts)], np.int64)
    joined = _joined(_sources(counts, Growth()), counts)

    slots = (1 + blocks).tolist()
    assert slots == joined.slots(blocks).tolist()
    assert [[1000 * slot for slot in slots], [7000 * slot for slot in slots]] == (
        joined.bases(blocks, 2).tolist()
    )


def test_tables_that_grow_are_looked_at_again() -> None:
    """A block that came after the tables were made again is read where it lies."""
    growth = Growth()
    counts = [1, 0, 2]
    sources = _sources(counts, growth)
    joined = _joined(sources, counts)
    assert [[1000, 2000, 3000]] == joined.bases(np.arange(3), 1).tolist()

    # Into a slot that the old table has too.
    sources[2].set_bases(4 * _SLOTS, (0, 0), capacity=8 * _SLOTS)
    sources[2].set_bases(5, (55, 0), capacity=8 * _SLOTS)
    sources[2].slot_of[1] = 5

    assert 2 + 1 == growth.times
    assert [[1000, 2000, 55]] == joined.bases(np.arange(3), 1).tolist()


@pytest.mark.parametrize("block", [-1, 3, 1 << 40])
def test_a_block_of_no_dataset_is_refused(block: int) -> None:
    """The compiled loops read nothing beside the tables."""
    counts = [1, 2]
    joined = _joined(_sources(counts, Growth()), counts)

    with pytest.raises(ValueError, match="find_slots"):
        joined.slots(np.array([0, block]))
    with pytest.raises(ValueError, match="find_bases"):
        joined.bases(np.array([0, block]), 2)


def test_a_block_that_is_not_cached_has_no_bases() -> None:
    """Nor has one whose slot, or part, its table does not reach."""
    counts = [2]
    sources = _sources(counts, Growth())
    joined = _joined(sources, counts)

    for slot in (0, -1, _SLOTS):
        sources[0].slot_of[1] = slot
        with pytest.raises(ValueError, match="not cached"):
            joined.bases(np.arange(2), 2)
    sources[0].slot_of[1] = 2
    with pytest.raises(ValueError, match="not cached"):
        joined.bases(np.arange(2), 3)


def test_blocks_of_several_datasets_are_pinned_together_or_not_at_all() -> None:
    """One block that is missing, and none of another dataset is pinned; what is asked for comes."""
    first, second = CountingStore(), CountingStore()
    with cache_of(first) as (cache, one):
        other = add_source(cache, second)
        joined = JoinedSources([one, other], np.array([0, 1000, 2000]))
        waiter, blocks = cache.readers.waiter(), np.array([3, 1004, 1005])
        demand(cache, one, [3], waiter)
        demand(cache, other, [4], waiter)
        with Lease(cache.readers, joined, blocks) as is_whole:
            assert not is_whole
            assert 0 == cache._slots.pin_count
        waiter.plan_batch()
        assert not cache.readers.will_read(joined, blocks, waiter)
        assert [1005] == cache.prefetch_joined(joined, blocks, waiter).tolist()
        demand(cache, other, [5], waiter)
        with Lease(cache.readers, joined, blocks) as is_whole:
            assert is_whole
            assert 3 == cache._slots.pin_count
        assert 0 == cache._slots.pin_count
        assert ([3], [4, 5]) == (first.reads, second.reads)


def test_what_a_mixture_will_read_is_kept() -> None:
    """Blocks that a stream reads ahead in several datasets outlive those that nobody will read."""
    store = CountingStore()
    with cache_of(store, blocks=3, threads=1) as (cache, one):
        other = add_source(cache, CountingStore())
        joined = JoinedSources([one, other], np.array([0, 1000, 2000]))
        waiter = cache.readers.waiter()
        demand(cache, other, [7], waiter)
        waiter.plan_batch()
        assert cache.readers.will_read(joined, np.array([1007]), waiter)

        rest = cache.readers.waiter()
        for block in range(10, 20):
            demand(cache, one, [block], rest)

        assert other.is_cached(np.array([7])).all()
