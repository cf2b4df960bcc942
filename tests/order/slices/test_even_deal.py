"""Claims about dealing: the same samples and counts as in order, and even costs.

How it could give a wrong sample: one that two ranks get, or none; a rank with more than its share;
a sample that leaves its lane's slice.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BadArgumentError
from headrace.order import (
    DealSpec,
    Order,
    OrderSpec,
    ShardTable,
    check_sizes,
    check_speeds,
    deal_evenly,
    part_edges_of,
    slices_of,
)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0, 1e9]), min_size=1, max_size=90),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(0, 500),
    st.integers(1, 100),
    st.booleans(),
)
def test_each_sample_goes_to_one_part_and_each_part_has_its_share_of_each_slice(  # noqa: PLR0917 - as Hypothesis gives them
    costs: list[float],
    parts: int,
    lanes: int,
    position: int,
    unit: int,
    even: bool,  # noqa: FBT001 - the same
) -> None:
    """As many of each lane's slice as in order, whatever costs and paces are."""
    found, count = np.array(costs), len(costs)
    unit = max(unit, lanes)
    edges = slices_of(position, count, lanes=lanes, unit=unit)
    part_edges = np.arange(parts + 1) * count // parts
    loads = np.zeros(parts)
    pace = np.ones(parts) if even else 1.0 / np.arange(1, parts + 1)

    owners = deal_evenly(found, edges, part_edges, loads, pace)

    in_order = np.repeat(np.arange(parts), np.diff(part_edges))
    for low, high in itertools.pairwise(edges.tolist()):
        dealt, wanted = (
            np.bincount(each[low:high], minlength=parts) for each in (owners, in_order)
        )
        assert dealt.tolist() == wanted.tolist()
    assert np.allclose(loads, np.bincount(owners, found, minlength=parts))


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("unit", [3, 7, 20])
def test_slices_are_those_of_the_orders_lanes(lanes: int, unit: int) -> None:
    """The positions of a slice are of one lane."""
    counts = np.array([200])
    order = Order(OrderSpec(lanes=lanes, unit=unit), ShardTable(counts, counts))

    for position, count in ((0, 20), (5, 20), (33, 61)):
        edges = slices_of(position, count, lanes=lanes, unit=unit)
        lanes_of = np.empty(count, np.int64)
        at = 0
        for lane, first, end in order.stretches(position, position + count):
            lanes_of[at : at + end - first] = lane
            at += end - first
        assert edges[0] == 0
        assert edges[-1] == count
        assert (np.diff(edges) > 0).all()
        for low, high in itertools.pairwise(edges.tolist()):
            assert len(set(lanes_of[low:high].tolist())) == 1


@pytest.mark.parametrize("sigma", [1.0, 1.3])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("cap", [8192, 1 << 40])
def test_costs_are_even(sigma: float, power: int, cap: int) -> None:
    """Of 64 ranks with 16 samples each: the greatest cost over the mean.

    Capped at 8,192 at most 1.02; else at most 1.05 times what the costliest sample and the 15
    cheapest, which one rank must have, need.
    """
    random = np.random.default_rng(int(10 * sigma) + power)
    edges, part_edges = np.array([0, 1024]), np.arange(65) * 16
    for _ in range(20):
        lengths = np.exp(random.normal(np.log(600), sigma, 1024)).astype(np.int64)
        costs = np.minimum(lengths, cap).astype(np.float64) ** power
        loads = np.zeros(64)

        deal_evenly(costs, edges, part_edges, loads, np.ones(64))

        mean, rising = costs.sum() / 64, np.sort(costs)
        least = max(1.0, (rising[-1] + rising[:15].sum()) / mean)
        assert loads.max() / mean <= (1.02 * least if cap == 8192 else 1.05 * least)
        if cap == 8192 and least == 1.0:
            assert loads.max() / mean <= 1.02


def test_a_faster_rank_gets_more_to_do() -> None:
    """As many samples, of greater cost."""
    costs = np.random.default_rng(1).integers(1, 1000, 400).astype(np.float64)
    loads = np.zeros(2)
    spec = DealSpec(speeds=(1.0, 1.3))

    owners = deal_evenly(
        costs, np.array([0, 400]), np.array([0, 200, 400]), loads, check_speeds(spec, 2)
    )

    assert np.bincount(owners).tolist() == [200, 200]
    assert 1.25 <= loads[1] / loads[0] <= 1.35


def test_golden() -> None:
    """What docs/order.md shows."""
    costs = np.array([5.0, 1, 9, 3, 3, 8, 2, 7, 4, 6, 1, 2])

    owners = deal_evenly(costs, np.array([0, 12]), np.array([0, 4, 8, 12]), np.zeros(3), np.ones(3))

    assert owners.tolist() == [1, 0, 0, 0, 1, 1, 2, 2, 0, 2, 1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 0},
        {"accumulate": 257},
        {"length_cost": -1.0},
        {"square_cost": float("nan")},
        {"length_cost": float("inf")},
        {"speeds": (0.0,)},
        {"sizes": (3, 0)},
        {"speeds": (float("nan"),)},
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    """Each names its field."""
    with pytest.raises(BadArgumentError):
        DealSpec(**options)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), rest=st.integers(0, 45))
def test_sizes_share_each_batch_in_proportion(sizes: list[int], rest: int) -> None:
    """A full one by the sizes, and of a smaller one a rank gets no more than of a full one."""
    deal = DealSpec(sizes=tuple(sizes))
    whole = part_edges_of(deal, len(sizes), sum(sizes))
    count = min(rest, sum(sizes))
    edges = part_edges_of(deal, len(sizes), count)

    assert sizes == np.diff(whole).tolist()
    assert [0, count] == [edges[0], edges[-1]]
    assert (abs(np.diff(edges) - np.array(sizes) * count / sum(sizes)) < 1).all()
    assert (np.diff(edges) <= sizes).all()


@pytest.mark.parametrize("sizes", [(3, 5), (3, 4, 2)])
def test_sizes_are_one_for_each_rank_and_make_the_batch(sizes: tuple[int, ...]) -> None:
    """Others are refused, with both numbers and sums."""
    with pytest.raises(BadArgumentError, match=r"together [89], but 3 ranks share .* of 8"):
        check_sizes(DealSpec(sizes=sizes), 3, 8)


def test_speeds_are_one_for_each_rank() -> None:
    """Or none."""
    with pytest.raises(BadArgumentError, match="2 speeds, and 3 ranks"):
        check_speeds(DealSpec(speeds=(1.0, 2.0)), 3)
