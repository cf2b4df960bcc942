"""Tests of windows: how an epoch is cut, and that what is found names the same samples."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.order import OrderSpec
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.needs import CacheNeed
from headrace.server.cache.windows import Windows
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.plan.find_samples import StepFinder
from headrace.server.plan.window_finder import WindowFinder, cut_of
from headrace.server.telemetry.metrics import Metrics
from headrace.storage import open_dataset
from support.datasets import write_dataset

_SAMPLES = 6000
_NEEDED = 1000


@dataclass
class _Job:
    """A job over a small dataset, and how much of the cache it may use."""

    cache: BlockCache
    windows: Windows
    plain: StepFinder
    finder: WindowFinder
    part_bytes: int = _NEEDED
    questions: int = 0

    def ask(self) -> int:
        """Return how much of the cache it may use, and count the question."""
        self.questions += 1
        return self.part_bytes


@pytest.fixture
def job(tmp_path: Path) -> Iterator[_Job]:
    """A table that is shuffled as a whole."""
    with _opened(tmp_path) as found:
        yield found


@contextmanager
def _opened(folder: Path, *, together: int = _SAMPLES) -> Iterator[_Job]:
    numbers = np.arange(_SAMPLES)
    write_dataset(str(folder), pa.table({"x": numbers}), shard_samples=[_SAMPLES // 2] * 2)
    cache = BlockCache(1 << 20, fetch_threads=2, observer=Metrics())
    with open_dataset(str(folder)) as dataset:
        served = ServedDataset("one", dataset, cache=cache, max_batch_bytes=1 << 20)
        plain = served.finder(OrderSpec(seed=5))
        assert isinstance(plain, StepFinder)
        finder = WindowFinder(
            plain,
            served.windows.windows,
            need=CacheNeed("job", range(1), _NEEDED, "data", _NEEDED),
            part_bytes=lambda: made.ask(),  # noqa: PLW0108 - it is made below
            together=together,
            batch=1,
        )
        made = _Job(cache, served.windows.windows, plain, finder)
        yield made
    cache.close()


@pytest.mark.parametrize("least", [10_000, 9_412])
@pytest.mark.parametrize("percent", [5, 10, 25, 50, 75, 90, 94])
def test_a_cut_fits_and_reads_few_times(percent: int, least: int) -> None:
    """What is kept whole and two windows of pieces fit, and few blocks are read often."""
    cut = cut_of(10_000, percent * 100, least_bytes=least)

    assert cut is not None
    assert 10_000 * (cut.whole + (1 - cut.whole) * 2 / cut.count) <= percent * 100
    most = {50: 6.5, 75: 4.0, 90: 2.2, 94: 2.1}.get(percent, 4 * 100 / percent)
    assert cut.whole + (1 - cut.whole) * cut.count <= most


def test_what_fits_is_not_cut() -> None:
    """A job with what it needs reads whole blocks."""
    assert cut_of(1000, 950, least_bytes=940) is None


def test_a_job_that_fits_finds_what_it_always_found(job: _Job) -> None:
    """The very same arrays, so that windows cost nothing until they are needed."""
    expected = job.plain.find(0, [[(0, 500)]])

    assert not job.finder.is_cut
    assert np.array_equal(expected[0].blocks, job.finder.find(0, [[(0, 500)]])[0].blocks)


def test_a_job_that_shuffles_little_asks_no_more_often(tmp_path: Path) -> None:
    """With a window for each sample, one caller's plans would take most of a processor."""
    with _opened(tmp_path, together=1) as job:
        job.finder.find(0, [[(0, _SAMPLES)]])

        assert job.questions <= 2


def test_pieces_hold_the_same_samples(job: _Job) -> None:
    """Wherever batches lie, in one window or two, of one range or of pads beside it."""
    job.part_bytes = _NEEDED // 2
    batches = [[(0, 300)], [(300, 1700)], [(5900, 6000), (10, 20)]]

    found = job.finder.find(3, batches)
    expected = job.plain.find(3, batches)

    assert job.finder.is_cut
    assert [len(each.sample_ids) for each in found] == [300, 1400, 110]
    for mine, plain in zip(found, expected, strict=True):
        assert np.array_equal(plain.sample_ids, mine.sample_ids)
        assert np.array_equal(plain.blocks, mine.blocks % job.windows.stride)
        assert np.array_equal(np.unique(mine.blocks), mine.touched)
        is_whole = mine.blocks < job.windows.stride
        assert 0 < is_whole.sum() < len(is_whole)
        assert np.array_equal(plain.offsets[is_whole], mine.offsets[is_whole])


def test_streams_of_a_job_share_windows(job: _Job) -> None:
    """Ranks that come to a window find the numbers that the first one found."""
    job.part_bytes = _NEEDED // 2

    (first,) = job.finder.find(0, [[(0, 100)]])
    (far,) = job.finder.find(0, [[(4000, 4100)]])
    (again,) = job.finder.find(0, [[(0, 100)]])

    assert np.array_equal(first.blocks, again.blocks)
    assert np.intersect1d(first.touched, far.touched).max() < job.windows.stride


def test_a_window_that_is_over_is_freed_and_its_numbers_are_unknown(job: _Job) -> None:
    """Its pieces are never taken for those of another, and their memory is free again."""
    job.part_bytes = _NEEDED // 2
    (found,) = job.finder.find(0, [[(0, 100)]])
    numbers = found.touched[found.touched >= job.windows.stride]
    (source, first, _, own) = next(job.windows.split(numbers))
    assert source is not None
    waiter = job.cache.readers.waiter()
    with job.cache.demand(source, own, waiter):
        left = own.size
        while left:
            left -= job.cache.arrivals(source, waiter, timeout_s=60).size
    assert np.all(job.windows.slots(numbers) > 0)
    used_bytes = job.cache.used_bytes

    del found
    for position in (1500, 3000, 4500):
        job.finder.find(0, [[(position, position + 1)]])
    gc.collect()
    job.windows.free()

    assert np.all(job.windows.slots(numbers) == 0)
    assert 0 == job.cache.used_bytes < used_bytes
    assert first >= job.windows.stride
