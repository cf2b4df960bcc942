"""Claims about finding samples: compiled loops find what the order and the dataset say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.order import EndMode, EpochPlan, Order, OrderSpec, Skips, table_of
from headrace.server.plan.find_samples import BatchPlaces, Finder, PlacedStep, Range
from headrace.server.plan.plain_finder import PlainFinder, step_finder
from headrace.server.plan.planned_batches import ranges_of
from headrace.server.plan.prefetch_blocks import FORESEEN_WINDOWS
from headrace.storage import OpenDataset, open_dataset
from support.datasets import write_manifest

_SHARDS, _BLOCKS = 40, 30
# A server takes 90 calls for a batch of 64 samples (tests/server/stream/test_python_calls.py).
_MOST_CALLS = 10 * 90


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenDataset]:
    """Some 600,000 samples, more than are permuted by sorting, in blocks of 1 to 1,000."""
    url = str(tmp_path_factory.mktemp("manifest"))
    random = np.random.default_rng(5)
    sample_counts = random.integers(1, 1001, (_SHARDS, _BLOCKS))
    raw_bytes = sample_counts * random.integers(1, 2000, (_SHARDS, 1))
    write_manifest(url, sample_counts, raw_bytes, stored_bytes=1000)
    with open_dataset(url) as dataset:
        yield dataset


def _order(spec: OrderSpec, dataset: OpenDataset, skips: Skips | None = None) -> Order:
    table = table_of(dataset.stretches())
    return Order(spec, table, skips=skips)


def _lists(found: list[BatchPlaces]) -> list[list[list[int]]]:
    return [
        [part.tolist() for part in (each.sample_ids, each.blocks, each.offsets, each.touched)]
        for each in found
    ]


_SPECS = st.builds(
    OrderSpec,
    seed=st.integers(0, 9),
    shuffle_samples=st.sampled_from([0, 1, 50, 5000, 100_000, 1 << 20]),
    shuffle_bytes=st.sampled_from([0, 1 << 22, 1 << 26, 1 << 30]),
    run_bytes=st.sampled_from([1, 1 << 14, 1 << 21]),
    lanes=st.sampled_from([1, 1, 2, 3]),
    unit=st.sampled_from([3, 400, 1001]),
    shuffle=st.sampled_from([True, True, True, False]),
)


@settings(deadline=None, max_examples=40)
@given(
    spec=_SPECS,
    has_skips=st.booleans(),
    rank=st.integers(0, 6),
    base=st.floats(0, 1, exclude_max=True),
    global_batch_size=st.sampled_from([7, 64, 1001, 5000, 70_000]),
    end=st.sampled_from(EndMode),
)
@example(OrderSpec(), False, 0, 0.9, 70_000, EndMode.PAD)
@example(OrderSpec(lanes=2, unit=400), False, 6, 0.4, 5000, EndMode.UNEVEN)
@example(OrderSpec(shuffle_samples=100_000, run_bytes=1 << 14), False, 5, 0, 70_000, EndMode.PAD)
def test_steps_hold_what_the_order_says(  # noqa: PLR0917 - as Hypothesis gives them
    dataset: OpenDataset,
    spec: OrderSpec,
    has_skips: bool,  # noqa: FBT001 - as Hypothesis gives it
    rank: int,
    base: float,
    global_batch_size: int,
    end: EndMode,
) -> None:
    """Samples, blocks, places and distinct blocks are the same, whatever options there are.

    Batches lie across steps, lanes and the end of an epoch, where pads repeat some.
    """
    skips = Skips(np.arange(0, dataset.sample_count, 97)) if has_skips else None
    order = _order(spec, dataset, skips)
    # Each step that a batch touches is worked out, so small steps get small batches.
    global_batch_size = min(global_batch_size, 7 * 50 * max(1, order.memory_samples // 16))
    plan = EpochPlan(dataset.sample_count, int(base * dataset.sample_count), global_batch_size, end)
    count = plan.batch_count
    batches: list[list[Range]] = []
    for indices in (range(min(9, count)), range(max(0, count - 9), count)):
        if indices:
            batches += map(ranges_of, plan.batches(indices, rank=rank, world_size=7))

    found = step_finder(order, dataset, least_step=1).find(3, batches)

    assert _lists(PlainFinder(order, dataset).find(3, batches)) == _lists(found)


def test_any_batch_is_found_whatever_was_read_before(dataset: OpenDataset) -> None:
    """Streams that read one order at many places, epochs and lanes find what each would alone."""
    order = _order(OrderSpec(shuffle_samples=5000, lanes=4, unit=4000), dataset)
    finder: Finder = step_finder(order, dataset, least_step=1)
    random = np.random.default_rng(1)

    for _ in range(150):
        start = int(random.integers(0, dataset.sample_count - 3000))
        batches = [[(start, start + 3000)], [(start + 5, start + 5)], [(start, start + 40)]]
        epoch = int(random.integers(0, 3))

        wanted = PlainFinder(order, dataset).find(epoch, batches)
        assert _lists(wanted) == _lists(finder.find(epoch, batches))


def test_a_step_that_was_looked_ahead_at_is_not_worked_out_again(dataset: OpenDataset) -> None:
    """A stream looks at steps one and a half windows of 16 steps early, and at each twice more."""
    finder = step_finder(_order(OrderSpec(shuffle_samples=5000), dataset), dataset, least_step=1)
    step = finder.step_blocks(0, 0, 0)
    seen: list[PlacedStep] = []
    while step is not None and len(seen) < 200:
        seen.append(step)
        if len(seen) > 24:
            passed = seen[-25]
            assert passed is finder.step_blocks(0, 0, passed.start)
        step = finder.step_blocks(0, 0, step.end)

    assert 200 == len({one.name for one in seen})


@pytest.mark.parametrize("shuffle_samples", [1, 20, 1000, 30_000])
def test_small_steps_are_not_worked_out_for_each_batch(
    dataset: OpenDataset, shuffle_samples: int
) -> None:
    """A batch costs what it costs to find it through the order; a step of one sample cost 0.8 ms.

    Counted are calls, as in tests/order/test_option_costs.py.
    """
    finder = step_finder(_order(OrderSpec(shuffle_samples=shuffle_samples), dataset), dataset)
    calls, count = 0, 128

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    batches: list[list[list[Range]]] = [
        [[(place, place + 64)]] for place in range(20_000, 20_000 + 64 * count, 64)
    ]
    finder.find(0, [[(0, 64)]])
    sys.setprofile(note)
    try:
        for batch in batches:
            finder.find(0, batch)
    finally:
        sys.setprofile(None)

    assert calls <= count * _MOST_CALLS


def test_a_block_is_read_for_the_last_time_a_window_after_the_first(dataset: OpenDataset) -> None:
    """So a stream that looks further ahead than that knows all that cached blocks are needed for.

    But for blocks that lie at the border of two runs.
    """
    order = _order(OrderSpec(shuffle_samples=5000, run_bytes=1 << 20), dataset)
    finder = step_finder(order, dataset, least_step=1)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    place, end = 0, 100_000
    while place < end and (step := finder.step_blocks(0, 0, place)) is not None:
        for block in step.blocks.tolist():
            first.setdefault(block, step.start)
            last[block] = step.end
        place = step.end
    spans = np.array([last[block] - first[block] for block in first])

    assert len(first) > 100
    assert np.mean(spans <= FORESEEN_WINDOWS * order.memory_samples) >= 0.9
