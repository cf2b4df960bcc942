"""Claims about skipped samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from order.order_strategies import mixtures, orders, skip_lists, specs, tables, without


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


@given(orders(), st.data())
def test_skips_move_no_position_and_are_found_backwards(order: Order, data: st.DataObject) -> None:
    """Only skipped samples give way, to kept ones; `find` knows every position of a sample."""
    count = order.sample_count
    few = st.lists(st.integers(0, max(count - 1, 0)), max_size=count // 2)
    stretch = st.integers(0, count // 2).map(lambda length: list(range(length)))
    skipped = data.draw(few | stretch) if count > 1 else []
    without = Order(order.spec, order.table, skips=Skips(skipped))
    before, after = order.sample_ids(5, 0, count), without.sample_ids(5, 0, count)

    assert not set(skipped) & set(after.tolist())
    lost = Skips(skipped).contains(before)
    assert before[~lost].tolist() == after[~lost].tolist()
    for sample_id in {*skipped[:3], *after[lost][:5].tolist(), *after[:3].tolist()}:
        expected = np.flatnonzero(after == sample_id).tolist()
        assert expected == without.find(5, sample_id).tolist()


@given(case=mixtures(), data=st.data())
@settings(max_examples=60)
def test_skips_move_no_position_of_a_mixture(
    case: tuple[MixtureSpec, list[ShardTable]], data: st.DataObject
) -> None:
    """No skipped sample comes, every other stays where it was, and substitutes are counted."""
    spec, tables = case
    sizes = [table.sample_count for table in tables]
    lists = [data.draw(skip_lists(size)) for size in sizes]
    plain = MixtureOrder(spec, tables)
    order = without(spec, tables, [Skips(skipped) for skipped in lists])
    first_ids = plain.first_ids.tolist()
    skipped = {i + first for own, first in zip(lists, first_ids, strict=False) for i in own}

    before = plain.sample_ids(1, 0, plain.sample_count).tolist()
    after = order.sample_ids(1, 0, plain.sample_count).tolist()

    assert not skipped & set(after)
    assert [i in skipped for i in before] == order.skipped(1, 0, plain.sample_count).tolist()
    assert all(old == new for old, new in zip(before, after, strict=True) if old not in skipped)


def test_skipping_everything_is_refused() -> None:
    """An order of a dataset of which nothing is left cannot be made."""
    table = ShardTable(np.array([5]), np.array([5]))

    with pytest.raises(BadArgumentError, match="all 5 samples"):
        Order(OrderSpec(), table, skips=Skips(range(5)))
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


def test_only_supersets_may_be_adopted() -> None:
    """A run goes on with more skips if told so, and never with fewer or others."""
    old = Skips([1, 2])

    check_skips(Skips([2, 1, 1]), old)
    check_skips(Skips([1, 2, 3]), old, allow_new_skips=True)
    with pytest.raises(TokenSpecChangedError, match="allow_new_skips"):
        check_skips(Skips([1, 2, 3]), old)
    with pytest.raises(TokenSpecChangedError, match="and 1 of these are not among"):
        check_skips(Skips([1, 3]), old, allow_new_skips=True)
