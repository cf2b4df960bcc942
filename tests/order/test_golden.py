"""Golden vectors of order version 1: changing one of them is making version 2.

A run that resumes would silently see other samples, so a change here is never a fix.
"""

from __future__ import annotations

import json
from pathlib import Path
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
    Token,
    decode_token,
    encode_token,
    linear,
)
from headrace.order._hash import derive, draw
from headrace.order._permutation import permutation, permute

_TOKENS = Path(__file__).parent / "golden" / "tokens.jsonl"
_SEVEN = 0x74B5ABCC66B8BDC1


def _table(*, range_reads: bool = True) -> ShardTable:
    counts = np.full(1000, 1000, np.int64)
    return ShardTable(counts, counts * 1000, range_reads)


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


def test_a_small_dataset() -> None:
    """Seventeen samples in five shards, one of them empty."""
    table = ShardTable(np.array([3, 0, 5, 8, 1]), np.array([300, 0, 500, 800, 100]))
    wanted = [7, 10, 8, 5, 15, 11, 16, 9, 4, 13, 14, 2, 1, 6, 12, 3, 0]

    assert wanted == Order(OrderSpec(seed=7), table).sample_ids(0, 0, 17).tolist()


@pytest.mark.parametrize(
    ("options", "first", "later"),
    [
        ({}, [506281, 912062, 305881, 722326], [79801, 818527, 600566, 562137]),
        ({"window": 5000}, [621315, 258970, 170643, 805483], [326625, 763575, 36164, 585694]),
        ({"window": 0}, [881161, 68319, 415430, 291871], [837666, 420256, 633471, 184448]),
        (
            {"window_bytes": 10**7},
            [503619, 206432, 541296, 707357],
            [358643, 358621, 938841, 588212],
        ),
        (
            {"window": 5000, "lanes": 3, "unit": 7},
            [621315, 258970, 254572, 418323],
            [507933, 344960, 63229, 738289],
        ),
        (
            {"shuffle": False, "lanes": 2, "unit": 4},
            [0, 1, 500000, 500001],
            [250000, 250001, 750000, 750001],
        ),
    ],
)
def test_a_million_samples(options: dict[str, Any], first: list[int], later: list[int]) -> None:
    """The first samples of epoch 0 and those in the middle of epoch 3."""
    order = Order(OrderSpec(seed=7, **options), _table())

    assert first == order.sample_ids(0, 0, 4).tolist()
    assert later == order.sample_ids(3, 500_000, 500_004).tolist()


def test_whole_shards() -> None:
    """Sources without range reads have an order of their own."""
    order = Order(OrderSpec(seed=7, window=5000), _table(range_reads=False))

    assert [356352, 165988, 81487, 165960] == order.sample_ids(0, 0, 4).tolist()


@pytest.mark.parametrize(
    ("batching", "wanted"),
    [
        (Batching.RANDOM, [2679821, 2241317, 1270131, 43375, 7891, 964222, 964190, 1625236]),
        (Batching.STRATIFIED, [1889231, 7891, 2319741, 1402042, 327001, 1270131, 964736, 2241317]),
        (
            Batching.PER_DATASET,
            [1402400, 1261174, 1505212, 1551527, 1270171, 1505143, 1261068, 1402445],
        ),
    ],
)
def test_mixtures(batching: Batching, wanted: list[int]) -> None:
    """A schedule over three datasets, in the middle of epoch 1."""
    spec = MixtureSpec(
        tuple(MixtureDataset(name, 32 * name) for name in "abc"),
        OrderSpec(seed=7, window=5000, unit=8),
        batching,
        10_000,
        linear([0, 20_000], [[1, 2, 3], [3, 2, 1]]),
    )

    assert wanted == MixtureOrder(spec, [_table()] * 3).sample_ids(1, 5000, 5008).tolist()


def test_choices() -> None:
    """A dataset repeated, one sampled down afresh and one sampled down for good."""
    datasets = (
        MixtureDataset("a", 32 * "a", repeat=2),
        MixtureDataset("b", 32 * "b", choose=1000),
        MixtureDataset("c", 32 * "c", repeat=0.1, choice=Choice.FIXED, granularity=10),
    )
    order = MixtureOrder(MixtureSpec(datasets, OrderSpec(seed=7)), [_table()] * 3)

    assert [80378, 953353, 2061086, 756844, 287849, 184832, 2803275, 449871] == order.sample_ids(
        1, 5000, 5008
    ).tolist()


def test_digests() -> None:
    """What tokens hold of fingerprints, mixtures and skips."""
    spec = MixtureSpec(
        (MixtureDataset("a", 32 * "a", repeat=2), MixtureDataset("b", 32 * "b")), OrderSpec(seed=7)
    )

    assert "f290a88ba18e70125fa1dcc9b75f4c37" == spec.fingerprint
    assert "8a6528a60a25a297eb71102f326bf92f" == spec.digest
    assert "c2295167a27ca1484b95871b3daf7c1f" == Skips([5, 3, 3]).digest


def _tokens() -> list[tuple[int, str, dict[str, Any]]]:
    lines = [json.loads(line) for line in _TOKENS.read_text().splitlines()]
    return [(line["version"], line["token"], line["fields"]) for line in lines]


@pytest.mark.parametrize(("version", "token", "fields"), _tokens())
def test_old_tokens_are_read_for_ever(version: int, token: str, fields: dict[str, Any]) -> None:
    """Every token that any version has written is read; lines are added and never changed."""
    wanted = Token(**{**fields, "spec": OrderSpec(**fields["spec"])})

    assert wanted == decode_token(bytes.fromhex(token))
    if version == 1:
        assert token == encode_token(wanted).hex()
