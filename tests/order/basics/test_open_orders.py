"""Claims about what the order keeps between calls."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.order import MixtureDataset, MixtureOrder, MixtureSpec, Order, OrderSpec, ShardTable
from headrace.order.dealing.cohorts import DealtSteps


def test_walking_through_many_epochs_stays_small() -> None:
    """Caches of one order stay bounded however many epochs and windows it has opened."""
    counts = np.full(20_000, 50, np.int64)
    order = Order(OrderSpec(shuffle_samples=50_000), ShardTable(counts, counts))

    for epoch in range(150):
        order.sample_ids(epoch, 0, 200_000)

    dealt = (order._dealt._blocks, order._dealt._steps)
    caches = (order._layouts, order._networks, order._chunks, *dealt)
    assert all(cache.held_bytes <= cache._max_bytes for cache in caches)


def test_walking_through_many_passes_of_a_mixture_stays_small() -> None:
    """Tables of open passes start again when they are full, and stay right."""
    counts = np.full(500, 40, np.int64)
    tables = [ShardTable(counts, counts)] * 8
    spec = MixtureSpec(
        tuple(MixtureDataset(f"d{i}", f"{i:032x}") for i in range(8)),
        OrderSpec(shuffle_samples=3000),
    )
    walked = MixtureOrder(spec, tables)
    walked._members._passes._budget_bytes = 100_000

    for epoch in range(6):
        for start in range(0, 160_000, 40_000):
            found = walked.sample_ids(epoch, start, start + 1000).tolist()

            fresh = MixtureOrder(spec, tables).sample_ids(epoch, start, start + 1000).tolist()
            assert fresh == found
    # Six epochs have 400 KB of runs; eight passes, 64 KB, are needed at one time.
    table = walked._members._passes._table
    assert table is not None
    assert table.nbytes <= 200_000


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        (OrderSpec(seed=3, shuffle_samples=400, run_bytes=90), [997, 1, 0, 350] * 40),
        (OrderSpec(seed=4, shuffle_samples=3000, lanes=3, unit=7, run_bytes=900), [2000, 300] * 60),
        (OrderSpec(seed=5, shuffle_samples=40), [20_011] * 4),
        (OrderSpec(seed=6, shuffle_samples=200_000, run_bytes=5000), [400_001, 399_990]),
    ],
)
def test_steps_of_whole_cohorts_are_those_found_sample_by_sample(
    spec: OrderSpec, counts: list[int]
) -> None:
    """Where cohorts do not fit into memory each sample is found alone, and comes where it came."""
    table = ShardTable(np.array(counts), np.array(counts) * 3)
    whole, alone = Order(spec, table), Order(spec, table)
    alone._dealt = DealtSteps(whole.sample_count, 0)

    for epoch in (0, 3):
        found = whole.sample_ids(epoch, 0, whole.sample_count)

        np.testing.assert_array_equal(alone.sample_ids(epoch, 0, whole.sample_count), found)
    assert whole._dealt.held_bytes > alone._dealt.held_bytes == 0
