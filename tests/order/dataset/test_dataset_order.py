"""Claims about the order of one dataset: every sample once, forwards and backwards, and evenly."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.bench_order_absence import even_table, sorted_labels
from headrace.cli.stored.evenness import measure
from headrace.errors import BadArgumentError, PositionPastEndError
from headrace.order import Order, OrderSpec, ShardTable, Skips
from order.order_strategies import orders

_MIB = 1 << 20


def _table(*counts: int, sample_bytes: int = 100) -> ShardTable:
    samples = np.array(counts, np.int64)
    return ShardTable(samples, samples * sample_bytes)


@given(orders(), st.just(0) | st.integers(0, 2**62 - 1))
def test_an_epoch_has_every_sample_once_and_is_read_backwards(order: Order, epoch: int) -> None:
    """Positions and samples are one to one, whatever the options, and `positions` inverts it."""
    sample_ids = order.sample_ids(epoch, 0, order.sample_count)

    assert list(range(order.sample_count)) == sorted(sample_ids.tolist())
    assert list(range(order.sample_count)) == order.positions(epoch, sample_ids).tolist()


@given(orders(), st.data())
def test_any_position_opens_as_if_all_before_it_had_been_read(
    order: Order, data: st.DataObject
) -> None:
    """Ranges and single positions give what the whole epoch gives, for any batch or world size."""
    epoch = data.draw(st.sampled_from([0, 1]))
    whole = order.sample_ids(epoch, 0, order.sample_count)
    start = data.draw(st.integers(0, order.sample_count))
    stop = data.draw(st.integers(start, order.sample_count))
    again = Order(order.spec, order.table)

    assert whole[start:stop].tolist() == again.sample_ids(epoch, start, stop).tolist()
    assert (
        whole[start:stop][::-1].tolist() == again.at(epoch, np.arange(start, stop)[::-1]).tolist()
    )


@pytest.mark.parametrize(
    "spec",
    [
        OrderSpec(seed=3, shuffle_bytes=64 * _MIB, run_bytes=65536),
        OrderSpec(seed=3, shuffle_bytes=900 * _MIB, lanes=3, unit=1024),
        OrderSpec(seed=3, shuffle_bytes=0),
    ],
)
def test_a_million_positions_are_found_backwards(spec: OrderSpec) -> None:
    """The inverse holds for 10^6 random positions of 10^7 samples, sorted or by a network."""
    order = Order(spec, even_table(10**7, sample_bytes=1000, shard_bytes=4 * _MIB))
    positions = np.random.default_rng(1).integers(0, 10**7, 10**6)

    assert np.array_equal(positions, order.positions(2, order.at(2, positions)))


def test_small_steps_that_lie_among_large_ones_are_sorted_alone() -> None:
    """At the start of epoch 0 steps grow from 3,125 samples: some are below 4,096."""
    order = Order(
        OrderSpec(shuffle_samples=100_000),
        even_table(10**6, sample_bytes=1000, shard_bytes=4 * _MIB),
    )

    sample_ids = order.sample_ids(0, 0, 10**6)

    assert np.array_equal(np.arange(10**6), order.positions(0, sample_ids))


@pytest.mark.parametrize("lanes", [1, 4])
def test_without_shuffle_a_lane_is_in_storage_order(lanes: int) -> None:
    """`shuffle=False` gives storage order; with lanes, each holds a stretch of it."""
    order = Order(OrderSpec(shuffle=False, lanes=lanes, unit=4), _table(3, 0, 5, 8))

    sample_ids = order.sample_ids(0, 0, 16)

    assert np.arange(16).reshape(lanes, -1).T.ravel().tolist() == sample_ids.tolist()


def test_window_zero_shuffles_the_whole_epoch() -> None:
    """With `shuffle_samples=0` a sample's neighbours come from anywhere, but for the ramp."""
    for epoch, ramp in ((0, False), (1, True)):
        order = Order(OrderSpec(shuffle_samples=0, ramp=ramp), _table(*[1000] * 1000))
        for start in (0, 500_000):
            sample_ids = order.sample_ids(epoch, start, start + 1000)

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


def _evenness(spec: OrderSpec, shard_bytes: int) -> tuple[NDArray[np.float64], float, float, float]:
    # The data of the promise, scaled down to 10^6 samples: 47 times the memory.
    table = even_table(1_000_000, sample_bytes=110_000, shard_bytes=shard_bytes)
    order = Order(spec, table)
    labels = sorted_labels(1_000_000, np.ones(1000))[order.sample_ids(0, 0, 1_000_000)]
    found = measure(labels)
    return np.array(found.variances), found.labels, found.absence, found.longest


@pytest.mark.parametrize("shard_bytes", [64 * _MIB, 900_000_000])
@pytest.mark.parametrize(
    ("run_bytes", "shuffle_bytes", "variances", "labels"),
    [
        (2 * _MIB, 2 << 30, (1.2, 1.6, 2.8), 530),
        (1 * _MIB, 2 << 30, (1.1, 1.25, 1.55), 590),
        (4 * _MIB, 8 << 30, (1.15, 1.35, 2.0), 0),
    ],
)
def test_sorted_data_is_even(
    run_bytes: int,
    shuffle_bytes: int,
    variances: tuple[float, ...],
    labels: int,
    shard_bytes: int,
) -> None:
    """Batches of sorted data have the promised variances and labels, and no label stays away."""
    spec = OrderSpec(seed=1, run_bytes=run_bytes, shuffle_bytes=shuffle_bytes)
    found, distinct, absence, longest = _evenness(spec, shard_bytes)

    assert (found <= variances).all(), found
    assert distinct >= labels
    if run_bytes == 2 * _MIB:
        # Absences are promised for the default, and for data of at least 20 times the memory.
        assert absence <= 2.8
        assert longest <= 5.5


def test_neighbouring_seeds_and_epochs_share_nothing() -> None:
    """Two epochs have as many samples in the same batch as two uniform permutations."""
    table = even_table(1_000_000, sample_bytes=110_000, shard_bytes=64 * _MIB)
    epochs = [
        Order(OrderSpec(seed=seed), table).sample_ids(epoch, 0, 1_000_000)
        for seed, epoch in ((1, 0), (1, 1), (2, 0))
    ]
    places = [np.argsort(epoch) // 1000 for epoch in epochs]

    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 0.0005 < (places[one] == places[other]).mean() < 0.002


def test_no_sample_comes_early_because_of_its_place_in_its_shard() -> None:
    """Over seeds, first and last samples of shards come in the middle of the epoch on average."""
    table = even_table(100_000, sample_bytes=110_000, shard_bytes=64 * _MIB)
    starts = np.cumsum(table.sample_counts) - table.sample_counts
    for places in (starts, starts + table.sample_counts - 1):
        means = [
            Order(OrderSpec(seed=seed), table).positions(0, places).mean() / 100_000
            for seed in range(20)
        ]
        assert abs(np.mean(means) - 0.5) < 0.03


@pytest.mark.parametrize(
    ("samples", "shards", "limit_s"), [(10**9, 10**5, 0.3), (10**12, 10**6, 4.5)]
)
def test_opening_costs_little(samples: int, shards: int, limit_s: float) -> None:
    """The middle of a huge epoch opens within three times what a free machine is promised to."""
    counts = np.full(shards, samples // shards)
    table = ShardTable(counts, counts * 3000, block_samples=np.full(shards, 345))
    began = time.process_time()
    Order(OrderSpec(), table).sample_ids(0, samples // 2, samples // 2 + 8192)

    assert time.process_time() - began < limit_s


def test_what_is_no_position_is_refused() -> None:
    """Positions past the end, samples that are none and specs out of range name the value."""
    table = _table(1_046_400)
    order = Order(OrderSpec(), table)

    with pytest.raises(PositionPastEndError, match="1046401"):
        order.at(0, np.array([0, 1_046_400]))
    with pytest.raises(BadArgumentError, match="sample id 1046400"):
        order.positions(0, np.array([5, 1_046_400]))
    with pytest.raises(BadArgumentError, match="skips contain all"):
        Order(OrderSpec(), table, skips=Skips(np.arange(1_046_400)))
    with pytest.raises(BadArgumentError, match="run_bytes is 0"):
        OrderSpec(run_bytes=0)
    with pytest.raises(BadArgumentError, match="block_samples"):
        ShardTable(np.array([3]), np.array([3]), block_samples=np.array([1, 2]))
