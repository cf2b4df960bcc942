"""Order version 2: every sample once, forwards and backwards, and as even as it promises."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.bench_order_absence import even_table, sorted_labels
from headrace.cli._evenness import measure
from headrace.errors import BadArgumentError, PositionPastEndError
from headrace.order import Order, OrderSpec, ShardTable, Skips

_MIB = 1 << 20


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Draw an order of up to some thousand samples, with even, uneven or unreadable blocks."""
    counts = np.array(draw(st.lists(st.integers(0, 400), min_size=1, max_size=40)), np.int64)
    sizes = np.array(
        draw(st.lists(st.integers(0, 900), min_size=len(counts), max_size=len(counts)))
    )
    blocks = draw(st.none() | st.integers(0, 40))
    table = ShardTable(
        counts,
        counts * sizes,
        range_reads=draw(st.booleans()),
        block_samples=None if blocks is None else np.minimum(counts, blocks),
    )
    lanes = draw(st.integers(1, 5))
    spec = OrderSpec(
        seed=draw(st.integers(0, 2**63 - 1)),
        shuffle=draw(st.booleans()),
        run_bytes=draw(st.integers(1, 20_000)),
        shuffle_bytes=draw(st.integers(0, 400_000)),
        shuffle_samples=draw(st.sampled_from([0, 1, 7, 100, 2000])),
        lanes=lanes,
        unit=draw(st.integers(lanes, 300)),
    )
    return Order(spec, table)


@given(orders(), st.integers(0, 2**62 - 1))
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
    whole = order.sample_ids(1, 0, order.sample_count)
    start = data.draw(st.integers(0, order.sample_count))
    stop = data.draw(st.integers(start, order.sample_count))
    again = Order(order.spec, order.table)

    assert whole[start:stop].tolist() == again.sample_ids(1, start, stop).tolist()
    assert whole[start:stop][::-1].tolist() == again.at(1, np.arange(start, stop)[::-1]).tolist()


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


def _table() -> ShardTable:
    counts = np.array([1000, 3000, 0, 2500, 40] * 160)
    blocks = np.array([100, 250, 0, 0, 17] * 160)
    return ShardTable(counts, counts * 100, block_samples=blocks)


@pytest.mark.parametrize(
    ("options", "first", "later"),
    [
        ({}, [494199, 751547, 278604, 835346], [210160, 681679, 528498, 33052]),
        (
            {"shuffle_bytes": 1000000, "run_bytes": 20000},
            [173068, 173044, 173042, 173054],
            [418164, 795578, 966932, 1029453],
        ),
        ({"shuffle_bytes": 0}, [494199, 751547, 278604, 835346], [210160, 681679, 528498, 33052]),
        (
            {"shuffle_samples": 5000, "run_bytes": 20000, "lanes": 3, "unit": 7},
            [173044, 173042, 367711, 367722],
            [186760, 186632, 737251, 837394],
        ),
        (
            {"shuffle_samples": 200000, "run_bytes": 4096},
            [150397, 772014, 462395, 927538],
            [531783, 761124, 199280, 206423],
        ),
    ],
)
def test_golden(options: dict[str, Any], first: list[int], later: list[int]) -> None:
    """The first samples of epoch 0 and those in the middle of epoch 3; a change is version 3."""
    order = Order(OrderSpec(seed=7, **options), _table())

    assert first == order.sample_ids(0, 0, 4).tolist()
    assert later == order.sample_ids(3, 500_000, 500_004).tolist()


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


def test_what_is_no_position_is_refused() -> None:
    """Positions past the end, samples that are none and specs out of range name the value."""
    order = Order(OrderSpec(), _table())

    with pytest.raises(PositionPastEndError, match="1046401"):
        order.at(0, np.array([0, 1_046_400]))
    with pytest.raises(BadArgumentError, match="sample id 1046400"):
        order.positions(0, np.array([5, 1_046_400]))
    with pytest.raises(BadArgumentError, match="skips hold all"):
        Order(OrderSpec(), _table(), skips=Skips(np.arange(1_046_400)))
    with pytest.raises(BadArgumentError, match="run_bytes is 0"):
        OrderSpec(run_bytes=0)
    with pytest.raises(BadArgumentError, match="block_samples"):
        ShardTable(np.array([3]), np.array([3]), block_samples=np.array([1, 2]))
