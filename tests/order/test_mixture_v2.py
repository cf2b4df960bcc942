"""Claims about mixtures of order version 2."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.errors import BadArgumentError
from headrace.order import (
    Batching,
    Choice,
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    OrderSpec,
    ShardTable,
    Skips,
    dump_mixture,
    linear,
    load_mixture,
    mixture_differences,
)
from order.order_strategies import mixtures, skip_lists

_Case = tuple[MixtureSpec, list[ShardTable]]


def _table(*counts: int) -> ShardTable:
    samples = np.array(counts, np.int64)
    return ShardTable(samples, samples * 1000)


def _mixture(*amounts: dict[str, Any], **options: Any) -> MixtureSpec:
    datasets = tuple(
        MixtureDataset(f"d{number}", f"{number:032x}", **amount)
        for number, amount in enumerate(amounts)
    )
    return MixtureSpec(datasets, **options)


def _without(spec: MixtureSpec, tables: list[ShardTable], skips: list[Skips]) -> MixtureOrder:
    try:
        return MixtureOrder(spec, tables, skips=skips)
    except BadArgumentError as error:
        # All that a fixed choice has chosen may happen to be skipped.
        assume("skips hold all" not in error.message)
        raise


@given(case=mixtures(), epoch=st.integers(0, 50), places=st.data())
@settings(max_examples=100)
def test_any_position_opens_like_a_run_from_the_start(
    case: _Case, epoch: int, places: st.DataObject
) -> None:
    """A mixture that opens in the middle gives what one that began at the start gives."""
    order = MixtureOrder(*case)
    whole = order.sample_ids(epoch, 0, order.sample_count)
    start = places.draw(st.integers(0, order.sample_count))
    stop = places.draw(st.integers(start, order.sample_count))

    opened = MixtureOrder(*case).sample_ids(epoch, start, stop)

    assert whole[start:stop].tolist() == opened.tolist()


@given(case=mixtures())
@settings(max_examples=60)
def test_every_draw_comes_once(case: _Case) -> None:
    """Over several epochs no sample of a dataset comes twice before all have come."""
    spec, tables = case
    spec = dataclasses.replace(spec, order=dataclasses.replace(spec.order, lanes=1))
    order = MixtureOrder(spec, tables)
    epochs = [order.samples(epoch, 0, order.sample_count) for epoch in range(3)]
    drawn, sample_ids = (np.concatenate(columns) for columns in zip(*epochs, strict=True))

    for number, (dataset, table) in enumerate(zip(spec.datasets, tables, strict=True)):
        counts = np.bincount(sample_ids[drawn == number], minlength=table.sample_count)
        fixed = dataset.choice is Choice.FIXED and order.draws[number] < table.sample_count

        assert set(counts.tolist()) <= {0, 3} if fixed else np.ptp(counts) <= 1


@given(case=mixtures(), epoch=st.integers(0, 5), data=st.data())
@settings(max_examples=100)
def test_all_draws_of_a_sample_are_found(case: _Case, epoch: int, data: st.DataObject) -> None:
    """`find` gives all positions of a sample, as a substitute too, and none of skipped ones."""
    spec, tables = case
    skips = [Skips(data.draw(skip_lists(table.sample_count))) for table in tables]
    order = _without(spec, tables, skips)
    sample_ids = order.sample_ids(epoch, 0, order.sample_count)
    samples = range(int(order.first_ids[-1]))
    looked_for = data.draw(st.lists(st.sampled_from(samples), max_size=5))
    for sample_id in {*looked_for, *(i for i, _ in Counter(sample_ids.tolist()).most_common(3))}:
        expected = np.flatnonzero(sample_ids == sample_id).tolist()
        assert expected == order.find(epoch, sample_id).tolist()


@given(case=mixtures(), data=st.data())
@settings(max_examples=60)
def test_skips_move_no_position_of_a_mixture(case: _Case, data: st.DataObject) -> None:
    """No skipped sample comes, every other stays where it was, and substitutes are counted."""
    spec, tables = case
    sizes = [table.sample_count for table in tables]
    lists = [data.draw(skip_lists(size)) for size in sizes]
    plain = MixtureOrder(spec, tables)
    order = _without(spec, tables, [Skips(skipped) for skipped in lists])
    first_ids = plain.first_ids.tolist()
    skipped = {i + first for own, first in zip(lists, first_ids, strict=False) for i in own}

    before = plain.sample_ids(1, 0, plain.sample_count).tolist()
    after = order.sample_ids(1, 0, plain.sample_count).tolist()

    assert not skipped & set(after)
    assert [i in skipped for i in before] == order.skipped(1, 0, plain.sample_count).tolist()
    assert all(old == new for old, new in zip(before, after, strict=True) if old not in skipped)


@pytest.mark.parametrize("lanes", [1, 3])
def test_all_samples_of_all_datasets_are_one_epoch(lanes: int) -> None:
    """Without options a mixture is an exact epoch over all of its datasets."""
    order_spec = OrderSpec(shuffle_samples=50, run_bytes=3000, lanes=lanes, unit=7)
    order = MixtureOrder(
        _mixture({}, {}, {}, order=order_spec), [_table(100, 3), _table(1), _table(17, 0, 90)]
    )

    assert list(range(211)) == sorted(order.sample_ids(4, 0, 211).tolist())


def test_datasets_share_the_memory_by_their_draws() -> None:
    """A mixture's shuffle holds what one dataset's would, shared in proportion."""
    spec = _mixture({"proportion": 1}, {"proportion": 3}, order=OrderSpec(shuffle_bytes=1_000_000))
    order = MixtureOrder(spec, [_table(*[100] * 50)] * 2)

    assert np.allclose([250, 750], order.memory_samples, atol=1)


def test_what_fits_into_the_memory_is_uniform() -> None:
    """Datasets that fit together are each one uniform permutation."""
    order = MixtureOrder(_mixture({}, {}), [_table(300, 200), _table(500)])

    assert [500, 500] == order.memory_samples.tolist()


def test_thousands_of_datasets_in_a_batch() -> None:
    """A batch of a mixture of thousands of datasets has most of them."""
    spec = _mixture(*[{}] * 3000)
    order = MixtureOrder(spec, [_table(100, 50)] * 3000)

    datasets, sample_ids = order.samples(2, 100_000, 108_192)

    assert len(np.unique(datasets)) > 2500
    assert 0 <= sample_ids.min() <= sample_ids.max() < 150


def test_differences_name_the_dataset_and_both_values() -> None:
    """A refusal can say which dataset and which option differ."""
    wanted = _mixture({"repeat": 2}, {}, order=OrderSpec(seed=1, shuffle_bytes=5))
    found = _mixture({"repeat": 3}, {}, order=OrderSpec(seed=2))

    assert () == mixture_differences(wanted, wanted)
    assert (
        "seed: 1 requested, the token has 2",
        "shuffle_bytes: 5 requested, the token has 2147483648",
        "d0.repeat: 2 requested, the token has 3",
    ) == mixture_differences(wanted, found)
    assert wanted.digest != found.digest


@given(case=mixtures())
def test_json_gives_the_same_mixture(case: _Case) -> None:
    """A mixture that was written and read gives the same order and the same digests."""
    spec, _ = case

    read = load_mixture(dump_mixture(spec))

    assert spec.digest == read.digest
    assert spec.fingerprint == read.fingerprint
    assert spec.order == read.order
    assert () == mixture_differences(spec, read)


def test_a_sample_that_no_dataset_has_is_refused() -> None:
    """What is looked for must be a sample of the mixture."""
    order = MixtureOrder(_mixture({}, batching=Batching.PER_DATASET), [_table(5)])

    with pytest.raises(BadArgumentError, match="sample id 5 is none of the mixture"):
        order.find(0, 5)


def _million() -> ShardTable:
    counts = np.full(1000, 1000)
    return ShardTable(counts, counts * 1000, block_samples=np.full(1000, 50))


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        (Batching.RANDOM, [2171893, 2460394, 1277710, 499295, 535874, 965247, 191652, 1502047]),
        (Batching.STRATIFIED, [1709148, 535874, 2510622, 1127119, 83218, 1277710, 614985, 2460394]),
        (
            Batching.PER_DATASET,
            [1083363, 1709188, 1158692, 1233421, 1047828, 1740099, 1241810, 1740063],
        ),
    ],
)
def test_golden_schedules(batching: Batching, expected: list[int]) -> None:
    """A schedule over three datasets, in the middle of epoch 1; a change is version 3."""
    spec = _mixture(
        *[{}] * 3,
        order=OrderSpec(seed=7, shuffle_bytes=10**8, run_bytes=100_000, unit=8),
        batching=batching,
        epoch_size=10_000,
        schedule=linear([0, 20_000], [[1, 2, 3], [3, 2, 1]]),
    )

    assert expected == MixtureOrder(spec, [_million()] * 3).sample_ids(1, 5000, 5008).tolist()


@pytest.mark.parametrize(
    ("options", "skips", "expected"),
    [
        (
            {},
            None,
            [884460, 707257, 2419946, 607520, 148967, 638541, 2749033, 547669],
        ),
        (
            {"shuffle_bytes": 10**8},
            [Skips(np.arange(0, 10**6, 2)), None, Skips(np.arange(0, 10**6, 3))],
            [61763, 815757, 2933394, 173911, 815091, 173997, 2677132, 326593],
        ),
    ],
)
def test_golden_amounts(
    options: dict[str, Any], skips: list[Skips | None] | None, expected: list[int]
) -> None:
    """A dataset repeated, one sampled down afresh and one for good, with skips and without."""
    fixed = {"repeat": 0.1, "choice": Choice.FIXED, "granularity": 10}
    spec = _mixture({"repeat": 2}, {"choose": 1000}, fixed, order=OrderSpec(seed=7, **options))
    order = MixtureOrder(spec, [_million()] * 3, skips=skips)

    assert expected == order.sample_ids(1, 5000, 5008).tolist()
