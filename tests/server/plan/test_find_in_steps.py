"""Claims about finding samples: compiled loops find what the order and the dataset say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.order import EndMode, EpochPlan, Order, OrderSpec, Skips, table_of
from headrace.server.plan.find_in_steps import StepFinder
from headrace.server.plan.find_samples import Finder, Found, PlainFinder, Range
from headrace.server.plan.planned_batches import ranges_of
from headrace.storage import OpenDataset, open_dataset
from support.datasets import write_manifest
from support.loops import compiled_loops

_SHARDS, _BLOCKS = 40, 30


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenDataset]:
    """Some 600,000 samples, more than are permuted by sorting, in blocks of 1 to 1,000."""
    compiled_loops()
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


def _lists(found: list[Found]) -> list[list[list[int]]]:
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
    plan = EpochPlan(dataset.sample_count, int(base * dataset.sample_count), global_batch_size, end)
    count = plan.batch_count
    batches: list[list[Range]] = []
    for indices in (range(min(9, count)), range(max(0, count - 9), count)):
        if indices:
            batches += map(ranges_of, plan.batches(indices, rank=rank, world_size=7))

    found = StepFinder(order, dataset).find(3, batches)

    assert _lists(PlainFinder(order, dataset).find(3, batches)) == _lists(found)


def test_any_batch_is_found_whatever_was_read_before(dataset: OpenDataset) -> None:
    """Streams that read one order at many places, epochs and lanes find what each would alone."""
    order = _order(OrderSpec(shuffle_samples=5000, lanes=4, unit=4000), dataset)
    finder: Finder = StepFinder(order, dataset)
    random = np.random.default_rng(1)

    for _ in range(150):
        start = int(random.integers(0, dataset.sample_count - 3000))
        batches = [[(start, start + 3000)], [(start + 5, start + 5)], [(start, start + 40)]]
        epoch = int(random.integers(0, 3))

        wanted = PlainFinder(order, dataset).find(epoch, batches)
        assert _lists(wanted) == _lists(finder.find(epoch, batches))
