"""Claims about lanes: who fills what, and what replicas read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadArgumentError
from headrace.order import EpochPlan, Order, OrderSpec, ShardTable
from headrace.order.dealing.lanes import LaneSplit


@given(samples=st.integers(0, 400), lanes=st.integers(1, 12), extra=st.integers(0, 30))
def test_lanes_fill_every_position_once(samples: int, lanes: int, extra: int) -> None:
    """Each position is filled by one lane, in rising places of it."""
    split = LaneSplit(samples, lanes, lanes + extra)
    lane_of = split.lane_of(np.arange(samples)).tolist()

    for lane in range(lanes):
        before = [lane_of[:position].count(lane) for position in range(samples + 1)]

        assert before == [split.offset(lane, position) for position in range(samples + 1)]
        assert before[-1] == split.length(lane)
        assert sum(other < lane for other in lane_of) == split.start(lane)


@given(
    samples=st.integers(0, 400),
    lanes=st.integers(1, 70),
    extra=st.integers(0, 30),
    ends=st.tuples(st.integers(0, 400), st.integers(0, 400)),
)
def test_a_range_is_read_lane_by_lane(
    samples: int, lanes: int, extra: int, ends: tuple[int, int]
) -> None:
    """Sorted by lane, each lane's positions are one range of its places, however uneven it is."""
    split = LaneSplit(samples, lanes, lanes + extra)
    start, stop = sorted(min(end, samples) for end in ends)
    wanted = [
        (int(lane), int(split.offset(lane, position)))
        for position in range(start, stop)
        for lane in split.lane_of(np.array([position]))
    ]

    order, ranges = split.by_lane(start, stop)

    found = [(lane, place) for lane, first, end in ranges for place in range(first, end)]
    assert [wanted[place] for place in order.tolist()] == found
    assert [lane for lane, _, _ in ranges] == sorted({lane for lane, _ in wanted})


@pytest.mark.parametrize(
    "spec",
    [
        OrderSpec(seed=2, lanes=7, unit=19, shuffle_samples=90),
        OrderSpec(seed=2, lanes=64, unit=64),
        OrderSpec(seed=2, lanes=64, unit=65, shuffle_samples=1),
        OrderSpec(seed=2, lanes=3, unit=64, shuffle=False),
        OrderSpec(seed=2, lanes=1500, unit=1501, shuffle_samples=10),
    ],
)
def test_epochs_are_read_by_turns(spec: OrderSpec) -> None:
    """Who jumps from one epoch to another, and back in it, reads what who reads it all does."""
    counts = np.array([4000, 1, 0, 2339])
    table, chance = ShardTable(counts, counts * 10), np.random.default_rng(5)
    whole = [Order(spec, table).sample_ids(epoch, 0, 6340) for epoch in range(3)]
    order = Order(spec, table)

    for _ in range(60):
        epoch, start = int(chance.integers(3)), int(chance.integers(6340))
        stop = min(start + int(chance.integers(1, 700)), 6340)

        assert whole[epoch][start:stop].tolist() == order.sample_ids(epoch, start, stop).tolist()


@pytest.mark.parametrize("world_size", [4, 8, 32])
def test_a_rank_draws_from_one_lane(world_size: int) -> None:
    """With L lanes, U = G and W a multiple of L, a rank's slices all fall into one lane."""
    split = LaneSplit(10_000, 4, 96)
    plan = EpochPlan(10_000, 0, 96)

    for rank in range(world_size):
        batches = [plan.batch(i, rank=rank, world_size=world_size) for i in range(0, 100, 7)]
        lanes = {
            lane for b in batches for lane in split.lane_of(np.arange(b.start, b.stop)).tolist()
        }

        assert {rank * 4 // world_size} == lanes


def test_a_unit_smaller_than_the_lanes_is_refused() -> None:
    """A lane without slots would never be served."""
    with pytest.raises(BadArgumentError, match="unit is 4, but 8 lanes"):
        OrderSpec(lanes=8, unit=4)


def _stored_reads(lanes: int, *, replicas: int = 8) -> float:
    """Read an epoch with a replica a rank, each of which reads a block once and keeps it.

    Returns blocks read by all replicas over the blocks of the dataset.
    """
    shards, samples, block = 400, 2000, 50
    spec = OrderSpec(shuffle_samples=20_000, lanes=lanes, unit=256)
    counts = np.full(shards, samples)
    order = Order(
        spec, ShardTable(counts, counts * 20_000, block_samples=np.full_like(counts, block))
    )
    plan = EpochPlan(order.sample_count, 0, 256)
    parts = [
        np.concatenate(
            [
                order.sample_ids(0, batch.start, batch.stop)
                for batch in (
                    plan.batch(i, rank=rank, world_size=replicas) for i in range(plan.batch_count)
                )
            ]
        )
        for rank in range(replicas)
    ]
    return sum(len(np.unique(part // block)) for part in parts) / (shards * samples // block)


def test_lanes_spare_the_store() -> None:
    """Eight replicas together read the store about 7 times without lanes, and once with eight."""
    assert 7 < _stored_reads(1) <= 8
    assert 1 <= _stored_reads(8) < 1.1
