"""Tests of runs in the cache: neighbours that are wanted come together, and no other block."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from headrace.errors import ShardCorruptError
from headrace.server.cache.fetch.fetch_queue import Fetches
from headrace.server.cache.readers import Waiter
from headrace.server.cache.source import Source
from support.blocks import RunStore, cache_of, demand


def _source(index: int = 0, *, run_blocks: int = 4) -> Source:
    with cache_of(RunStore()) as (_, source):
        layout = source.layout
    return Source(index, RunStore(), layout, 1000, run_blocks=run_blocks)


def _blocks(fetches: Fetches, *, threads: int = 1) -> list[list[int]]:
    """Take all that waits, as runs of blocks."""
    runs = []
    while run := fetches.take(threads):
        runs.append([fetch.block for fetch in run])
    return runs


def test_neighbours_that_wait_are_taken_together() -> None:
    """Whether streams wait for them or asked ahead, neighbours go in runs of bounded length."""
    fetches, source, waiter = Fetches(), _source(), Waiter(threading.Lock())
    for block in (9, 8, 20, 7, 11):
        fetches.ask(source, block, waiter)
    fetches.demand(source, 10, waiter)

    runs = _blocks(fetches)

    assert [10, 11] == runs[0][-2:]
    assert 4 == len(runs[0])
    assert [7, 8, 9, 10, 11, 20] == sorted(block for run in runs for block in run)
    assert all(run == list(range(run[0], run[0] + len(run))) for run in runs)


def test_only_a_block_that_nobody_fetches_needs_a_thread() -> None:
    """A stream that waits for what another thread fetches wakes nobody."""
    fetches, source, waiter = Fetches(), _source(), Waiter(threading.Lock())

    assert fetches.demand(source, 5, waiter)
    assert fetches.demand(source, 5, waiter)
    fetches.take(1)
    assert not fetches.demand(source, 5, waiter)


def test_threads_share_what_waits() -> None:
    """While there is a thread for each block none takes two."""
    fetches, source, waiter = Fetches(), _source(), Waiter(threading.Lock())
    for block in range(8):
        fetches.demand(source, block, waiter)

    assert [[0], [1], [2], [3], [4], [5], [6], [7]] == _blocks(fetches, threads=8)


def test_what_was_asked_for_together_stays_together() -> None:
    """A run that was asked for at once is one read, also while there is a thread for each block."""
    fetches, source, waiter = Fetches(), _source(), Waiter(threading.Lock())
    for block in (4, 5):
        fetches.ask(source, block, waiter, together=range(4, 6))
    fetches.ask(source, 6, waiter)
    # Somebody waits for a part of it meanwhile.
    fetches.demand(source, 5, waiter)

    assert [[4, 5], [6]] == sorted(_blocks(fetches, threads=8))


def test_neighbours_of_another_dataset_stay() -> None:
    """A run is of one dataset; what nobody wants any more is left out of it."""
    fetches, one, other = Fetches(), _source(0), _source(1)
    here, gone = Waiter(threading.Lock()), Waiter(threading.Lock())
    fetches.demand(one, 5, here)
    fetches.ask(other, 6, here)
    fetches.ask(one, 6, gone)
    gone.gone = True

    assert [[5], [6]] == _blocks(fetches)
    assert other.slot_of[6] != 0
    assert one.slot_of[6] == 0


@pytest.mark.parametrize("blocks", [2.0, 50.0])
def test_what_comes_in_runs_is_right(blocks: float) -> None:
    """Through a cache of any size every block comes once, with its own values."""
    store = RunStore()
    with cache_of(store, blocks=blocks, threads=2) as (cache, source):
        waiter = cache.readers.waiter()
        wanted = [*range(12), 15, *range(30, 40)]
        cache.prefetch(source, np.array(wanted[5:]), waiter)

        assert wanted == demand(cache, source, wanted, waiter)
        assert 0 == int(cache._slots.pins.sum())
    if blocks > len(wanted):
        assert sorted(store.reads) == wanted
    assert any(len(run) > 1 for run in store.runs)
    assert all(len(run) <= 4 for run in store.runs)


def test_a_bad_block_fails_only_those_who_want_it() -> None:
    """Of a run with one bad block the others are cached; the error reaches who waits for it."""
    store = RunStore(bad={2})
    store.gate.clear()
    with cache_of(store, threads=1) as (cache, source):
        ahead = cache.readers.waiter()
        cache.prefetch(source, np.array([0, 1, 2, 3]), ahead)
        store.gate.set()
        with pytest.raises(ShardCorruptError, match="block 2"):
            demand(cache, source, [2], ahead)

        assert [0, 1, 3] == demand(cache, source, [0, 1, 3], ahead)
    assert 1 == store.reads.count(3)
