"""Claims about skipped samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order import (
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    Order,
    OrderSpec,
    ShardTable,
    Skips,
    check_skips,
)
from headrace.order._substitutes import Substitutes
from order.order_strategies import mixtures, specs, tables


@given(spec=specs(), table=tables(), places=st.data())
@settings(max_examples=100)
def test_skips_move_no_position(spec: OrderSpec, table: ShardTable, places: st.DataObject) -> None:
    """No skipped sample comes, every other stays where it was, and substitutes are counted."""
    count = table.sample_count
    skipped = set(places.draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=count // 2)))
    order = Order(spec, table, skips=Skips(sorted(skipped)))

    before = Order(spec, table).sample_ids(1, 0, count).tolist()
    after = order.sample_ids(1, 0, count).tolist()

    assert not skipped & set(after)
    assert [i in skipped for i in before] == order.skipped(1, 0, count).tolist()
    assert all(old == new for old, new in zip(before, after, strict=True) if old not in skipped)
    start = places.draw(st.integers(0, count))
    assert after[start:] == order.sample_ids(1, start, count).tolist()


@given(case=mixtures(), places=st.data())
@settings(max_examples=60)
def test_skips_move_no_position_of_a_mixture(
    case: tuple[MixtureSpec, list[ShardTable]], places: st.DataObject
) -> None:
    """The same holds in mixtures, dataset by dataset."""
    spec, shard_tables = case
    sizes = [table.sample_count for table in shard_tables]
    lists = [places.draw(st.lists(st.integers(0, size - 1), max_size=size // 2)) for size in sizes]
    plain = MixtureOrder(spec, shard_tables)
    order = MixtureOrder(spec, shard_tables, skips=[Skips(skipped) for skipped in lists])
    first_ids = plain.first_ids.tolist()
    skipped = {i + first for own, first in zip(lists, first_ids, strict=False) for i in own}

    before = plain.sample_ids(1, 0, plain.sample_count).tolist()
    after = order.sample_ids(1, 0, plain.sample_count).tolist()

    assert not skipped & set(after)
    assert [i in skipped for i in before] == order.skipped(1, 0, plain.sample_count).tolist()
    assert all(old == new for old, new in zip(before, after, strict=True) if old not in skipped)


def test_a_substitute_comes_from_the_same_window() -> None:
    """The next sample of the window that is kept stands in, cyclically."""
    table = ShardTable(np.array([10]), np.array([10]))
    before = Order(OrderSpec(seed=1), table).sample_ids(0, 0, 10).tolist()
    skips = Skips([before[8], before[9]])

    after = Order(OrderSpec(seed=1), table, skips=skips).sample_ids(0, 0, 10).tolist()

    assert [*before[:8], before[0], before[0]] == after


def test_a_window_that_is_skipped_as_a_whole_takes_samples_of_the_others() -> None:
    """Each place takes the first kept id after the sample that comes before it in the window."""
    table = ShardTable(np.array([12]), np.array([12]))
    spec = OrderSpec(seed=3, window=4)
    before = Order(spec, table).sample_ids(0, 0, 12).tolist()
    skips = Skips(before[4:8])

    after = Order(spec, table, skips=skips).sample_ids(0, 0, 12).tolist()

    ring = [before[7], *before[4:7]]
    kept = [next(i % 12 for i in range(one, 24) if i % 12 not in before[4:8]) for one in ring]
    assert [*before[:4], *kept, *before[8:]] == after


def test_skipping_everything_is_refused() -> None:
    """An order of a dataset of which nothing is left cannot be made."""
    table = ShardTable(np.array([5]), np.array([5]))

    with pytest.raises(BadArgumentError, match="all 5 samples"):
        Order(OrderSpec(), table, skips=Skips(range(7)))
    assert (
        0 == Order(OrderSpec(), ShardTable(table.raw_bytes * 0, table.raw_bytes * 0)).sample_count
    )


def test_skipping_all_that_a_mixture_draws_from_one_dataset_is_refused() -> None:
    """Nor one of a mixture that draws from such a dataset; one with the weight 0 may be so."""
    shard_tables = [ShardTable(np.array([5]), np.array([5]))] * 2
    skips = [None, Skips(range(5))]

    def order(weight: float) -> MixtureOrder:
        datasets = (
            MixtureDataset("a", "a" * 32, proportion=1.0),
            MixtureDataset("b", "b" * 32, proportion=weight),
        )
        return MixtureOrder(MixtureSpec(datasets), shard_tables, skips=skips)

    with pytest.raises(BadArgumentError, match="all 5 samples of dataset b"):
        order(0.1)
    assert set(range(5)) == set(order(0.0).sample_ids(0, 0, 10).tolist())


@pytest.mark.parametrize("kept", [0, 1, 100_000])
def test_long_stretches_are_jumped_over(kept: int) -> None:
    """A stretch of 65,536 skipped places is read once and in few calls, not place by place."""
    count, skipped = 65_536 + kept, np.arange(65_536)
    sizes: list[int] = []

    def read(_: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes.append(places.size)
        return places.copy()

    substitutes = Substitutes(Skips(skipped))

    def fill(first: int, stop: int) -> tuple[list[int], int]:
        places = np.arange(first, stop)
        sample_ids, counts = places.copy(), np.full(places.size, count)
        windows = np.zeros(places.size, np.uint64)
        lost = substitutes.fill(sample_ids, places, counts, windows=windows, read=read)
        return sample_ids.tolist(), lost.size

    for first, stop in ((100, 116), (116, 132), (3000, 3001), (65_535, 65_536)):
        wanted = ((np.arange(first, stop) - 1) % count).tolist()
        if kept:
            wanted = [65_536] * (stop - first)
        assert (wanted, 0 if kept else stop - first) == fill(first, stop)

    assert sum(sizes) < 4 * 65_536
    assert len(sizes) < 40


def test_only_supersets_may_be_adopted() -> None:
    """A run goes on with more skips if told so, and never with fewer or others."""
    old = Skips([1, 2])

    check_skips(Skips([2, 1, 1]), old)
    check_skips(Skips([1, 2, 3]), old, allow_new_skips=True)
    with pytest.raises(TokenSpecChangedError, match="allow_new_skips"):
        check_skips(Skips([1, 2, 3]), old)
    with pytest.raises(TokenSpecChangedError, match="1 are not among"):
        check_skips(Skips([1, 3]), old, allow_new_skips=True)
