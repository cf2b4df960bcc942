"""Golden vectors of the order: changing one of them is making version 4.

A run that resumes would silently see other samples, so a change here is never a fix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.order import (
    Batching,
    Choice,
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    Order,
    OrderSpec,
    ShardTable,
    Skips,
    linear,
)
from headrace.order.basics.hash import derive, draw
from headrace.order.basics.permutation import permutation, permute

_SEVEN = 0x74B5ABCC66B8BDC1


def _table() -> ShardTable:
    counts = np.full(1000, 1000, np.int64)
    return ShardTable(counts, counts * 1000)


def _blocks() -> ShardTable:
    counts = np.full(1000, 1000)
    return ShardTable(counts, counts * 1000, block_samples=np.full(1000, 50))


def _uneven_table() -> ShardTable:
    counts = np.array([1000, 3000, 0, 2500, 40] * 160)
    blocks = np.array([100, 250, 0, 0, 17] * 160)
    return ShardTable(counts, counts * 100, block_samples=blocks)


def _mixture(*amounts: dict[str, Any], **options: Any) -> MixtureSpec:
    datasets = tuple(
        MixtureDataset(f"d{number}", f"{number:032x}", **amount)
        for number, amount in enumerate(amounts)
    )
    return MixtureSpec(datasets, **options)


def test_hash() -> None:
    """Keys and draws are those of docs/order.md."""
    keys = [derive(0, 0), derive(0, 7), derive(0, 7, 0), derive(0, 2**64 - 1, 1, 2, 3)]

    assert [0x48218226FF3CD4BF, _SEVEN, 0x2F4859DB8062C594, 0x7446D58ED7F13178] == keys
    assert [
        0x2991F7162DC45879,
        0x8ACD72A003A33248,
        0x4B7C7B9B108472DD,
        0xAFE9DFCBBA59EB1C,
    ] == draw(_SEVEN, np.arange(4, dtype=np.uint64)).tolist()
    ones = np.array([2**64 - 1], np.uint64)
    assert [0x702ED7DC5D911455] == draw(2**64 - 1, ones).tolist()


def test_permutations() -> None:
    """Both permutations are those of docs/order.md."""
    keys = np.array([_SEVEN], np.uint64)
    hundred = permute(keys, np.array([100]), np.arange(10))
    many = permute(keys, np.array([10**12]), np.arange(3))

    assert [4, 0, 9, 7, 2, 5, 1, 8, 3, 6] == permutation(_SEVEN, 10).tolist()
    assert [59, 68, 20, 53, 42, 55, 77, 88, 1, 48] == hundred.tolist()
    assert [534957601005, 542694156227, 228195738934] == many.tolist()


@pytest.mark.parametrize(
    ("options", "first", "third", "later"),
    [
        (
            {},
            [995992, 996889, 747234, 148203],
            [889983, 433071, 68902, 601169],
            [210160, 681679, 528498, 33052],
        ),
        (
            {"ramp": False},
            [494199, 751547, 278604, 835346],
            [889983, 433071, 68902, 601169],
            [210160, 681679, 528498, 33052],
        ),
        (
            {"shuffle_bytes": 1000000, "run_bytes": 20000},
            [641397, 641374, 59729, 164500],
            [25544, 852144, 180777, 180670],
            [331640, 118595, 118571, 507353],
        ),
        (
            {"shuffle_bytes": 0},
            [995992, 996889, 747234, 148203],
            [889983, 433071, 68902, 601169],
            [210160, 681679, 528498, 33052],
        ),
        (
            {"shuffle_samples": 5000, "run_bytes": 20000, "lanes": 3, "unit": 7},
            [173102, 164725, 76213, 212759],
            [758450, 180731, 389745, 389702],
            [236913, 835943, 468564, 350489],
        ),
        (
            {"shuffle_samples": 200000, "run_bytes": 4096},
            [150397, 772014, 462395, 927538],
            [195593, 669154, 387437, 955251],
            [753531, 721821, 777742, 732604],
        ),
    ],
)
def test_orders(
    options: dict[str, Any], first: list[int], third: list[int], later: list[int]
) -> None:
    """The first samples of epochs 0 and 3 and some in the middle; a change is version 4."""
    order = Order(OrderSpec(seed=7, **options), _uneven_table())

    assert first == order.sample_ids(0, 0, 4).tolist()
    assert third == order.sample_ids(3, 0, 4).tolist()
    assert later == order.sample_ids(3, 500_000, 500_004).tolist()


@pytest.mark.parametrize(
    ("batching", "wanted"),
    [
        (Batching.RANDOM, [2003279, 2808756, 1559307, 146614, 949753, 949783, 146871, 1365895]),
        (
            Batching.STRATIFIED,
            [1559307, 146614, 2003279, 1365895, 949753, 1365670, 949783, 2808756],
        ),
        (
            Batching.PER_DATASET,
            [1365747, 1559085, 1559079, 1365812, 1365849, 1559464, 1559026, 1365651],
        ),
    ],
)
def test_mixtures(batching: Batching, wanted: list[int]) -> None:
    """A schedule over three datasets, in the middle of epoch 1."""
    spec = MixtureSpec(
        tuple(MixtureDataset(name, 32 * name) for name in "abc"),
        OrderSpec(seed=7, shuffle_samples=5000, unit=8),
        batching,
        10_000,
        linear([0, 20_000], [[1, 2, 3], [3, 2, 1]]),
    )

    assert wanted == MixtureOrder(spec, [_table()] * 3).sample_ids(1, 5000, 5008).tolist()


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        (Batching.RANDOM, [2822111, 2622558, 1114691, 69960, 872820, 406997, 757342, 1277798]),
        (Batching.STRATIFIED, [1114691, 69960, 2822111, 1277798, 872820, 1427317, 406997, 2622558]),
        (
            Batching.PER_DATASET,
            [1083370, 1427345, 1779925, 1846424, 1039004, 1621010, 1652270, 1652227],
        ),
    ],
)
def test_schedules(batching: Batching, expected: list[int]) -> None:
    """A schedule over three datasets, in the middle of epoch 1; a change is version 4."""
    spec = _mixture(
        *[{}] * 3,
        order=OrderSpec(seed=7, shuffle_bytes=10**8, run_bytes=100_000, unit=8),
        batching=batching,
        epoch_size=10_000,
        schedule=linear([0, 20_000], [[1, 2, 3], [3, 2, 1]]),
    )

    assert expected == MixtureOrder(spec, [_blocks()] * 3).sample_ids(1, 5000, 5008).tolist()


def test_choices() -> None:
    """A dataset repeated, one sampled down afresh and one sampled down for good."""
    datasets = (
        MixtureDataset("a", 32 * "a", repeat=2),
        MixtureDataset("b", 32 * "b", choose=1000),
        MixtureDataset("c", 32 * "c", repeat=0.1, choice=Choice.FIXED, granularity=10),
    )
    order = MixtureOrder(MixtureSpec(datasets, OrderSpec(seed=7)), [_table()] * 3)

    assert [329045, 492854, 2206543, 406765, 228964, 10139, 2558712, 245951] == order.sample_ids(
        1, 5000, 5008
    ).tolist()


@pytest.mark.parametrize(
    ("options", "skips", "expected"),
    [
        (
            {},
            None,
            [329045, 492854, 2206543, 406765, 228964, 10139, 2558712, 245951],
        ),
        (
            {"shuffle_bytes": 10**8},
            [Skips(np.arange(0, 10**6, 2)), None, Skips(np.arange(0, 10**6, 3))],
            [449167, 531105, 2421372, 266675, 684261, 173397, 2421658, 979363],
        ),
    ],
)
def test_amounts(
    options: dict[str, Any], skips: list[Skips | None] | None, expected: list[int]
) -> None:
    """A dataset repeated, one sampled down afresh and one for good, with skips and without."""
    fixed = {"repeat": 0.1, "choice": Choice.FIXED, "granularity": 10}
    spec = _mixture({"repeat": 2}, {"choose": 1000}, fixed, order=OrderSpec(seed=7, **options))
    order = MixtureOrder(spec, [_blocks()] * 3, skips=skips)

    assert expected == order.sample_ids(1, 5000, 5008).tolist()


def test_digests() -> None:
    """What tokens hold of fingerprints, mixtures and skips."""
    spec = MixtureSpec(
        (MixtureDataset("a", 32 * "a", repeat=2), MixtureDataset("b", 32 * "b")), OrderSpec(seed=7)
    )

    assert "f290a88ba18e70125fa1dcc9b75f4c37" == spec.fingerprint
    assert "8a6528a60a25a297eb71102f326bf92f" == spec.digest
    assert "c2295167a27ca1484b95871b3daf7c1f" == Skips([5, 3, 3]).digest
