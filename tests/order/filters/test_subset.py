"""Tests of the samples that filters keep, and of orders over them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import (
    MixtureDataset,
    MixtureSpec,
    Order,
    OrderSpec,
    ShardTable,
    Skips,
    Subset,
    SubsetMixtureOrder,
    SubsetOrder,
    joined_digest,
)

GOLDEN_FEW = "f1ddfabeea09a27b8f48659040dc1cdd"
GOLDEN_ALL = "5011d48c785fa49dbbadb5c381c4f4f4"
GOLDEN_BOTH = "382ba8fa81b565a41e36a1f66578fb0b"


def _kept(mask: NDArray[np.bool_]) -> Subset:
    return Subset(np.packbits(mask, bitorder="little"), mask.size)


def _mask(seed: int, count: int, share: float) -> NDArray[np.bool_]:
    mask = np.random.default_rng(seed).random(count) < share
    mask[seed % count] = True
    return mask


def _table(count: int) -> ShardTable:
    counts = np.array([count // 3, 0, count - count // 3], np.int64)
    return ShardTable(counts, counts * 100, np.array([50, 0, 0], np.int64))


@given(st.integers(0, 99), st.integers(1, 200_000), st.sampled_from([0.0, 0.001, 0.5, 1.0]))
def test_numbers_and_ids_are_each_others_inverse(seed: int, count: int, share: float) -> None:
    """Of samples that are kept; those that are not have the number -1."""
    mask = _mask(seed, count, share)
    kept, ids = _kept(mask), np.flatnonzero(mask)

    assert kept.count == ids.size
    assert ids.tolist() == kept.sample_ids(np.arange(ids.size)).tolist()
    asked = np.random.default_rng(seed).integers(0, count, 300)
    expected = np.where(mask[asked], np.cumsum(mask)[asked] - 1, -1)
    assert expected.tolist() == kept.numbers(asked).tolist()
    before = np.concatenate([[0], np.cumsum(mask)])
    assert before[[0, count, count // 2]].tolist() == (
        kept.before(np.array([0, count, count // 2])).tolist()
    )


@given(
    st.integers(0, 99),
    st.integers(3, 3000),
    st.sampled_from([0.01, 0.5, 1.0]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_an_epoch_has_each_kept_sample_once(
    seed: int,
    count: int,
    share: float,
    lanes: int,
    shuffle: bool,  # noqa: FBT001 - drawn
) -> None:
    """And nothing else; each is found where it comes, and the others nowhere."""
    mask = _mask(seed, count, share)
    kept = _kept(mask)
    spec = OrderSpec(
        seed=seed, shuffle=shuffle, run_bytes=2000, shuffle_samples=40, lanes=lanes, unit=8
    )
    order = SubsetOrder(spec, kept.table(_table(count)), kept)

    epoch = order.sample_ids(5, 0, order.sample_count)

    assert np.flatnonzero(mask).tolist() == np.sort(epoch).tolist()
    found = order.find_each(5, np.arange(count))
    assert [epoch.tolist().index(n) if mask[n] else None for n in range(count)] == [
        int(each[0]) if each.size else None for each in found
    ]
    cut = order.sample_count // 2
    assert epoch[cut:].tolist() == order.sample_ids(5, cut, order.sample_count).tolist()
    members = order.run_members(5, epoch[:1])
    whole = Order(spec, kept.table(_table(count)))
    runs = whole.runs_of(5, kept.numbers(epoch[:1]))
    first, stop = kept.sample_ids(runs[0]), kept.sample_ids(runs[1] - 1) + 1
    assert members.tolist() == [n for n in range(int(first[0]), int(stop[0])) if mask[n]]


def test_what_keeps_all_has_blocks_of_its_own() -> None:
    """A filter that keeps all is an order without blocks: the same as one whose blocks differ."""
    table = _table(900)
    kept = _kept(np.ones(900, np.bool_))
    plain = Order(OrderSpec(seed=3), ShardTable(table.sample_counts, table.raw_bytes))
    found = SubsetOrder(OrderSpec(seed=3), kept.table(table), kept)

    assert plain.sample_ids(1, 0, 900).tolist() == found.sample_ids(1, 0, 900).tolist()


def test_memory_counts_what_is_read() -> None:
    """Of a sorted dataset the blocks that hold kept samples count, and of a mixed one all."""
    table = ShardTable(
        np.array([1000], np.int64), np.array([100_000], np.int64), np.array([10], np.int64)
    )
    together = np.arange(1000) < 25
    spread = np.arange(1000) % 40 == 0

    assert 30 * 100 == _kept(together).table(table).raw_bytes[0]
    assert 25 * 10 * 100 == _kept(spread).table(table).raw_bytes[0]
    assert 100_000 == _kept(np.arange(1000) % 5 == 0).table(table).raw_bytes[0]


def test_skips_are_those_of_the_whole_dataset() -> None:
    """Ids on the list are left out, those that are not kept anyway are none of it."""
    mask = np.arange(90) % 3 == 0
    kept = _kept(mask)
    order = SubsetOrder(
        OrderSpec(seed=1, run_bytes=900), kept.table(_table(90)), kept, skips=Skips([0, 1, 3, 60])
    )

    found = order.sample_ids(0, 0, 30)

    assert set(range(0, 90, 3)) - {0, 3, 60} == set(found.tolist())
    assert 3 == order.skipped(0, 0, 30).sum()
    everything = Skips(np.flatnonzero(mask))
    with pytest.raises(BadArgumentError, match="all 30 samples"):
        SubsetOrder(OrderSpec(), kept.table(_table(90)), kept, skips=everything)


def test_a_mixture_draws_from_what_is_kept() -> None:
    """Each dataset gives its kept samples once, by their ids in the whole mixture."""
    tables = [_table(90), _table(60), _table(30)]
    kept = [_kept(np.arange(90) % 3 == 0), None, _kept(np.arange(30) >= 20)]
    spec = MixtureSpec(
        tuple(MixtureDataset(name, f"{at:032x}") for at, name in enumerate("abc")),
        OrderSpec(seed=2),
    )
    own = [each if one is None else one.table(each) for each, one in zip(tables, kept, strict=True)]
    order = SubsetMixtureOrder(spec, own, kept, skips=[Skips([0, 2]), Skips([5]), None])

    found = order.sample_ids(0, 0, order.sample_count)

    assert [0, 90, 150, 180] == order.first_ids.tolist()
    assert 30 + 60 + 10 == order.sample_count
    expected = {*range(3, 90, 3), *range(90, 150), *range(170, 180)} - {95}
    assert expected == set(found.tolist())
    assert order.skips is not None
    assert [0, 2, 95] == order.skips.sample_ids.tolist()
    asked = np.array([3, 4, 100, 175])
    assert [found.tolist().index(3), found.tolist().index(100), found.tolist().index(175)] == [
        int(each[0]) if each.size == 1 else each.tolist()[0]
        for each in order.find_each(0, asked)
        if each.size
    ]


def test_digests_name_samples_and_dataset() -> None:
    """Golden: of three of twenty samples, of all of eight, and of a mixture of both."""
    few = Subset(np.array([0b10000001, 0, 0b1000], np.uint8), 20)
    every = Subset(np.array([255], np.uint8), 8)

    assert [0, 7, 19] == few.sample_ids(np.arange(3)).tolist()
    assert GOLDEN_FEW == few.digest
    assert GOLDEN_ALL == every.digest
    assert GOLDEN_BOTH == joined_digest([few.digest, "", every.digest])
    assert "" == joined_digest(["", ""])


def test_bits_of_another_dataset_are_refused() -> None:
    """Too few bits, and a shard table of another size."""
    with pytest.raises(BadArgumentError, match="must be one bit for each"):
        Subset(np.zeros(2, np.uint8), 17)
    with pytest.raises(BadArgumentError, match="same dataset and version"):
        _kept(np.ones(80, np.bool_)).table(_table(90))
