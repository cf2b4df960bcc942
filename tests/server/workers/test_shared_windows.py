"""Tests of windows that workers share: what is one window, and that nothing of it is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.memory.arena import Arena
from headrace.server.cache.needs import CacheNeed
from headrace.server.cache.pieces import Pieces
from headrace.server.cache.source import Source
from headrace.server.telemetry.metrics import Metrics
from headrace.server.workers.messages import NeedOfOther, NeedOpened, NeedOver, ToWorker
from headrace.server.workers.shared_needs import SharedNeeds, WorkerNeeds
from headrace.server.workers.shared_windows import SharedWindows
from support.blocks import CountingStore, add_source


@pytest.fixture
def cache() -> Iterator[BlockCache]:
    """A cache whose memory workers may map."""
    arena = Arena(1 << 20)
    made = BlockCache(1 << 20, fetch_threads=2, observer=Metrics(), arena=arena)
    with closing(made):
        yield made


def _pieces(*places: int) -> Pieces:
    blocks = np.array([2], np.int64)
    return Pieces(blocks, np.array([0, len(places)]), np.array(places, np.int32))


def _file_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _of_windows(cache: BlockCache) -> list[Source]:
    return [each for each in cache._sources.values() if each.whole is not None]


def test_the_same_samples_are_one_window_until_the_last_worker_closes_it(cache: BlockCache) -> None:
    """Then its pieces leave the cache, workers see that it is over, and its file is closed."""
    windows, whole = SharedWindows(cache), add_source(cache, CountingStore())
    files = _file_count()

    first, again = (windows.take([(whole, _pieces(0, 3))]) for _ in range(2))
    other = windows.take([(whole, _pieces(0, 2))])

    assert first is again
    assert {first.sources[0].index, other.sources[0].index} == {
        each.index for each in _of_windows(cache)
    }
    windows.give_back(first)
    assert not first.tables.is_over[0]
    windows.give_back(again)
    windows.give_back(other)
    assert first.tables.is_over[0]
    assert not _of_windows(cache)
    del first, again, other
    assert files == _file_count()


def test_a_dataset_takes_its_pieces_along(cache: BlockCache) -> None:
    """A window that is still open when its dataset is closed fetches nothing any more."""
    windows, whole = SharedWindows(cache), add_source(cache, CountingStore())
    window = windows.take([(whole, _pieces(1))])

    cache.remove_source(whole)

    assert window.sources[0].removed
    assert not _of_windows(cache)
    windows.give_back(window)


def test_each_worker_knows_what_the_streams_of_all_need() -> None:
    """A new one too, and nothing is left of one that has ended."""
    shared = SharedNeeds()
    need = CacheNeed("job", range(1), 800, "data", 800)
    sent: list[NeedOpened | NeedOver] = []
    first = WorkerNeeds(1000, send=sent.append)
    heard: list[ToWorker] = []
    own: list[ToWorker] = []
    first_number = shared.join(own.append)
    shared.join(heard.append)
    with first.held(need):
        (opened,) = sent
        assert isinstance(opened, NeedOpened)
        shared.change(first_number, opened.number, opened.need)
    late: list[ToWorker] = []
    shared.join(late.append)
    second = WorkerNeeds(1000, send=sent.append)

    for message in heard:
        assert isinstance(message, NeedOfOther)
        second.hear(message)
    assert heard == late
    assert not second.would_fit(CacheNeed("other", range(1), 900, "other", 900))
    shared.leave(first_number)
    gone = heard[-1]
    assert isinstance(gone, NeedOfOther)
    second.hear(gone)
    assert second.would_fit(CacheNeed("other", range(1), 900, "other", 900))
    assert 0 == second.needed_bytes
