"""Claims about the order of one dataset."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BadArgumentError, PositionPastEndError
from headrace.order import Order, OrderSpec, ShardTable
from order.order_strategies import specs, tables


def _table(*counts: int, sample_bytes: int = 100) -> ShardTable:
    samples = np.array(counts, np.int64)
    return ShardTable(samples, samples * sample_bytes)


@given(spec=specs(), table=tables(), epoch=st.integers(0, 2**40))
@settings(max_examples=150)
def test_every_epoch_is_a_bijection(spec: OrderSpec, table: ShardTable, epoch: int) -> None:
    """Every sample has one position in every epoch, whatever the options and the shards."""
    order = Order(spec, table)

    sample_ids = order.sample_ids(epoch, 0, order.sample_count)

    assert list(range(table.sample_count)) == np.sort(sample_ids).tolist()


@given(spec=specs(), table=tables(), places=st.data())
@settings(max_examples=150)
def test_any_position_opens_like_a_run_from_the_start(
    spec: OrderSpec, table: ShardTable, places: st.DataObject
) -> None:
    """An order that opens in the middle of an epoch gives what one that began at 0 gives."""
    whole = Order(spec, table).sample_ids(1, 0, table.sample_count)
    start = places.draw(st.integers(0, table.sample_count))
    stop = places.draw(st.integers(start, table.sample_count))

    opened = Order(spec, table).sample_ids(1, start, stop)

    assert whole[start:stop].tolist() == opened.tolist()


@pytest.mark.parametrize("lanes", [1, 4])
def test_without_shuffle_a_lane_is_in_storage_order(lanes: int) -> None:
    """`shuffle=False` gives storage order; with lanes, each holds a stretch of it."""
    order = Order(OrderSpec(shuffle=False, lanes=lanes, unit=4), _table(3, 0, 5, 8))

    sample_ids = order.sample_ids(0, 0, 16)

    assert np.arange(16).reshape(lanes, -1).T.ravel().tolist() == sample_ids.tolist()


def test_window_zero_shuffles_the_whole_epoch() -> None:
    """With `shuffle_samples=0` a sample's neighbours come from anywhere."""
    order = Order(OrderSpec(shuffle_samples=0), _table(*[1000] * 1000))

    sample_ids = order.sample_ids(0, 500_000, 501_000)

    assert 1000 == len(set(sample_ids.tolist()))
    assert len(set((sample_ids // 1000).tolist())) > 600


@pytest.mark.parametrize("count", [0, 1])
def test_tiny_datasets_have_an_order(count: int) -> None:
    """A dataset of one sample or none has an order."""
    order = Order(OrderSpec(), _table(0, count, 0))

    assert count == order.sample_count
    assert list(range(count)) == order.sample_ids(7, 0, count).tolist()


def test_a_dataset_without_shards_has_an_order() -> None:
    """No shards at all is no special case."""
    assert 0 == len(Order(OrderSpec(), _table()).sample_ids(0, 0, 0))


def test_one_huge_shard_is_cut() -> None:
    """A billion samples in one shard open at once, and a batch has samples from all over it."""
    order = Order(OrderSpec(), _table(10**9))

    sample_ids = order.sample_ids(0, 10**9 - 8192, 10**9)

    assert 8192 == len(set(sample_ids.tolist()))
    assert np.ptp(sample_ids) > 10**8


def test_a_range_past_the_end_is_refused() -> None:
    """A position past the end names both numbers."""
    with pytest.raises(PositionPastEndError, match=r"up to 11 .* has 10 samples"):
        Order(OrderSpec(), _table(10)).sample_ids(0, 0, 11)


@pytest.mark.parametrize(("epoch", "start", "stop"), [(-1, 0, 1), (0, -1, 1), (0, 2, 1)])
def test_a_range_that_is_none_is_refused(epoch: int, start: int, stop: int) -> None:
    """Negative epochs and positions and reversed ranges are refused."""
    with pytest.raises(BadArgumentError):
        Order(OrderSpec(), _table(10)).sample_ids(epoch, start, stop)


def test_threads_get_the_same_ids() -> None:
    """Ranks that read from many threads get what one thread gets."""
    spec = OrderSpec(shuffle_samples=100, lanes=2, unit=8)
    table = _table(*range(200))
    wanted = Order(spec, table).sample_ids(0, 0, table.sample_count)
    shared = Order(spec, table)
    starts = list(range(0, table.sample_count - 50, 50)) * 2

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda start: shared.sample_ids(0, start, start + 50), starts))

    for start, sample_ids in zip(starts, found, strict=True):
        assert wanted[start : start + 50].tolist() == sample_ids.tolist()
