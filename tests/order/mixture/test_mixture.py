"""Claims about mixtures."""

from __future__ import annotations

import dataclasses
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, PositionPastEndError
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
    piecewise,
)
from order.order_strategies import mixtures, skip_lists, without

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


@given(case=mixtures())
@settings(max_examples=60)
def test_a_pass_holds_each_sample_once(case: _Case) -> None:
    """Whatever epochs it is of; a dataset with a fixed choice has one pass for ever."""
    spec, tables = case
    spec = dataclasses.replace(spec, order=dataclasses.replace(spec.order, lanes=1))
    order = MixtureOrder(spec, tables)
    epochs = [order.with_passes(epoch, 0, order.sample_count) for epoch in range(3)]
    sample_ids, passes = (np.concatenate(columns) for columns in zip(*epochs, strict=True))
    drawn = np.searchsorted(order.first_ids, sample_ids, side="right") - 1

    for number, (dataset, table) in enumerate(zip(spec.datasets, tables, strict=True)):
        own = drawn == number
        fixed = dataset.choice is Choice.FIXED and order.draws[number] < table.sample_count
        if fixed:
            assert not passes[own].any()
            continue
        for each in range(int(passes[own].max(initial=-1)) + 1):
            ids = sample_ids[own & (passes == each)]
            assert len(set(ids.tolist())) == len(ids)
            is_last = each == passes[own].max()
            assert len(ids) == table.sample_count or is_last


@given(case=mixtures(), epoch=st.integers(0, 5), data=st.data())
@settings(max_examples=60)
def test_samples_that_differ_from_pass_to_pass_are_found(
    case: _Case, epoch: int, data: st.DataObject
) -> None:
    """As packed rows do: another id in each pass."""
    order = MixtureOrder(*case)
    sample_ids, passes = order.with_passes(epoch, 0, order.sample_count)
    dataset = data.draw(st.integers(0, len(case[1]) - 1))
    first, count = int(order.first_ids[dataset]), case[1][dataset].sample_count
    if not count:
        return

    def wanted(number: int) -> NDArray[np.int64]:
        return np.unique(np.array([number, 3 * number + 1]) % count)

    own = np.flatnonzero((first <= sample_ids) & (sample_ids < first + count))
    expected = [at for at in own.tolist() if sample_ids[at] - first in wanted(int(passes[at]))]
    assert expected == order.find_in_passes(epoch, dataset, wanted).tolist()


@given(case=mixtures(), epoch=st.integers(0, 5), data=st.data())
@settings(max_examples=100)
def test_all_draws_of_a_sample_are_found(case: _Case, epoch: int, data: st.DataObject) -> None:
    """`find` gives all positions of a sample, as a substitute too, and none of skipped ones."""
    spec, tables = case
    skips = [Skips(data.draw(skip_lists(table.sample_count))) for table in tables]
    order = without(spec, tables, skips)
    sample_ids = order.sample_ids(epoch, 0, order.sample_count)
    samples = range(int(order.first_ids[-1]))
    looked_for = data.draw(st.lists(st.sampled_from(samples), max_size=5))
    for sample_id in {*looked_for, *(i for i, _ in Counter(sample_ids.tolist()).most_common(3))}:
        expected = np.flatnonzero(sample_ids == sample_id).tolist()
        assert expected == order.find(epoch, sample_id).tolist()


@given(case=mixtures())
@settings(max_examples=60)
def test_an_epoch_is_the_sum_of_its_draws(case: _Case) -> None:
    """Each dataset gives exactly the draws that its repeat or choose says, in every epoch."""
    order = MixtureOrder(*case)
    if order.spec.weights() is not None:
        return

    for epoch in (0, 7):
        datasets, _ = order.samples(epoch, 0, order.sample_count)

        assert order.draws.tolist() == np.bincount(datasets, minlength=len(case[1])).tolist()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("options", [{}, {"run_bytes": 3000}])
def test_all_samples_of_all_datasets_are_one_epoch(lanes: int, options: dict[str, Any]) -> None:
    """Without options a mixture is an exact epoch over all of its datasets."""
    order_spec = OrderSpec(shuffle_samples=50, lanes=lanes, unit=7, **options)
    order = MixtureOrder(
        _mixture({}, {}, {}, order=order_spec), [_table(100, 3), _table(1), _table(17, 0, 90)]
    )

    assert list(range(211)) == sorted(order.sample_ids(4, 0, 211).tolist())


def test_stratified_units_hold_exact_proportions() -> None:
    """Proportions that divide the unit are exact in every unit."""
    spec = _mixture(
        {"proportion": 1},
        {"proportion": 2},
        {"proportion": 5},
        batching=Batching.STRATIFIED,
        order=OrderSpec(unit=64),
        epoch_size=6_400,
    )
    order = MixtureOrder(spec, [_table(1000)] * 3)

    datasets = order.samples(0, 0, 6_400)[0].reshape(-1, 64)

    assert {(8, 16, 40)} == {tuple(np.bincount(unit).tolist()) for unit in datasets}


def test_per_dataset_units_are_of_one_dataset() -> None:
    """Every unit is of one dataset, and units follow the proportions."""
    spec = _mixture(
        {"proportion": 1},
        {"proportion": 3},
        batching=Batching.PER_DATASET,
        order=OrderSpec(unit=16, lanes=4),
        epoch_size=16_000,
    )
    order = MixtureOrder(spec, [_table(1000)] * 2)

    units = order.samples(0, 0, 16_000)[0].reshape(-1, 16)

    assert 0 == np.ptp(units, axis=1).max()
    assert [250, 750] == np.bincount(units[:, 0]).tolist()


def test_datasets_share_the_memory_by_their_draws() -> None:
    """A mixture's shuffle holds what one dataset's would, shared in proportion."""
    spec = _mixture({"proportion": 1}, {"proportion": 3}, order=OrderSpec(shuffle_bytes=1_000_000))
    order = MixtureOrder(spec, [_table(*[100] * 50)] * 2)

    assert np.allclose([250, 750], order.memory_samples, atol=1)


def test_what_fits_into_the_memory_is_uniform() -> None:
    """Datasets that fit together are each one uniform permutation."""
    order = MixtureOrder(_mixture({}, {}), [_table(300, 200), _table(500)])

    assert [500, 500] == order.memory_samples.tolist()


def test_a_unit_that_does_not_divide_the_batch_is_refused() -> None:
    """With one dataset a unit a global batch is made of whole units."""
    spec = _mixture({}, batching=Batching.PER_DATASET, order=OrderSpec(unit=16))
    order = MixtureOrder(spec, [_table(1000)])

    order.check_global_batch_size(32)
    with pytest.raises(BadArgumentError, match="multiple of the unit, 16"):
        order.check_global_batch_size(24)


def test_random_batches_vary_around_their_proportions() -> None:
    """At random a batch has its proportions on average, and not always the same counts."""
    spec = _mixture({"proportion": 1}, {"proportion": 3}, epoch_size=200_000)
    order = MixtureOrder(spec, [_table(100_000)] * 2)

    batches = order.samples(0, 0, 200_000)[0].reshape(-1, 200)
    ones = batches.sum(axis=1)

    assert 150 == pytest.approx(ones.mean(), abs=0.05)
    assert 37.5 == pytest.approx(ones.var(), rel=0.2)


def test_schedules_rule_the_weights() -> None:
    """Weights change where the schedule says, epochs or not, and a weight of 0 draws nothing."""
    spec = _mixture({}, {}, schedule=piecewise([0, 1500], [[1, 0], [1, 1]]), epoch_size=1000)
    order = MixtureOrder(spec, [_table(100)] * 2)

    shares = [
        order.samples(*place)[0].mean() for place in [(0, 0, 1000), (1, 0, 500), (1, 500, 1000)]
    ]

    assert [0, 0, 0.5] == shares


def test_linear_schedules_climb() -> None:
    """A linear schedule goes from one end to the other and stays there."""
    spec = _mixture({}, {}, schedule=linear([0, 100_000], [[1, 0], [0, 1]]), epoch_size=10_000)
    order = MixtureOrder(spec, [_table(1000)] * 2)

    shares = [order.samples(epoch, 0, 10_000)[0].mean() for epoch in (0, 4, 9, 10)]

    assert np.allclose([0.05, 0.45, 0.95, 1], shares, atol=0.002)


@pytest.mark.parametrize("end", [1, 15, 16, 200, 4095, 4096, 10**6])
def test_linear_schedules_have_no_pieces_that_a_server_refuses(end: int) -> None:
    """A short stretch has few pieces, and at least one."""
    schedule = linear([0, end, 2 * end], [[1, 0], [0, 1], [1, 1]])

    lengths = np.diff(schedule.starts)
    assert 2 * max(1, min(256, end // 16)) == len(lengths)
    assert min(end, 16) <= lengths.min()
    assert (0, end, 2 * end) == schedule.starts[:: len(lengths) // 2]


@pytest.mark.parametrize(
    ("knots", "weights", "message"),
    [
        ([], [], "0 knots"),
        ([0, 10], [[1.0]], "2 knots and weights for 1"),
        ([0, 10], [[1.0]] * 3, "2 knots and weights for 3"),
        ([0, 10, 10], [[1.0]] * 3, "must increase"),
        ([0, 40, 30], [[1.0]] * 3, "must increase"),
    ],
)
def test_linear_schedules_that_cannot_be_are_refused(
    knots: list[int], weights: list[list[float]], message: str
) -> None:
    """Weights without a knot are refused, not left out."""
    with pytest.raises(BadArgumentError, match=message):
        linear(knots, weights)


def test_thousands_of_datasets_in_a_batch() -> None:
    """A batch of a mixture of thousands of datasets has most of them."""
    spec = _mixture(*[{}] * 3000)
    order = MixtureOrder(spec, [_table(100, 50)] * 3000)

    datasets, sample_ids = order.samples(2, 100_000, 108_192)

    assert len(np.unique(datasets)) > 2500
    assert 0 <= sample_ids.min() <= sample_ids.max() < 150


def test_fixed_choices_come_in_groups() -> None:
    """With a granularity neighbours are chosen together."""
    spec = MixtureSpec(
        (MixtureDataset("a", 32 * "a", choose=100, choice=Choice.FIXED, granularity=20),)
    )
    order = MixtureOrder(spec, [_table(5000, 5000)])

    chosen = np.sort(order.sample_ids(0, 0, 100))

    assert 6 == (np.diff(chosen) > 1).sum() + 1
    assert chosen.tolist() == np.sort(order.sample_ids(5, 0, 100)).tolist()
    assert order.sample_ids(0, 0, 100).tolist() != order.sample_ids(5, 0, 100).tolist()


@pytest.mark.parametrize(
    ("amounts", "options", "message"),
    [
        ([{"repeat": 1, "choose": 2}], {}, "repeat and choose"),
        ([{"proportion": -1}], {}, "proportion of d0 is -1"),
        ([{"proportion": 1}, {}], {}, "all or none"),
        ([{}], {"epoch_size": 5}, "repeat and choose set it"),
        ([{}], {"schedule": piecewise([0], [[1, 2]])}, "2 datasets, but the mixture has 1"),
        ([{"repeat": 2}], {"schedule": piecewise([0], [[1]])}, "in addition to the schedule"),
        ([], {}, "datasets is 0"),
        ([{"choice": Choice.FIXED}], {}, "needs choose or repeat"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(
    amounts: list[dict[str, float]], options: dict[str, object], message: str
) -> None:
    """A refusal names what does not fit."""
    with pytest.raises(BadArgumentError, match=message):
        _mixture(*amounts, **options)


@pytest.mark.parametrize(
    ("starts", "weights", "message"),
    [
        ([1], [[1.0]], "must be at 0"),
        ([0, 5, 5], [[1.0]] * 3, "must increase"),
        ([0], [[-1.0]], "not negative"),
        ([0], [[float("nan")]], "finite"),
        ([0, 5], [[1.0], [0.0]], "no weight above 0"),
        ([0, 5], [[1.0]], "must be"),
    ],
)
def test_schedules_that_cannot_be_are_refused(
    starts: list[int], weights: list[list[float]], message: str
) -> None:
    """A refusal names what is wrong with the schedule."""
    with pytest.raises(BadArgumentError, match=message):
        piecewise(starts, weights)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (_mixture({}), "1 datasets, but 2 tables"),
        (_mixture({"repeat": 1e12}, {}), "draws in total"),
    ],
)
def test_tables_that_do_not_fit_are_refused(spec: MixtureSpec, message: str) -> None:
    """A refusal says how many were wanted and found."""
    with pytest.raises(BadArgumentError, match=message):
        MixtureOrder(spec, [_table(5), _table(5)])


def test_threads_get_the_same_samples() -> None:
    """Ranks that read a mixture from many threads get what one thread gets."""
    spec = _mixture(
        {}, {"repeat": 2}, {"repeat": 0.5}, order=OrderSpec(shuffle_samples=100, lanes=2, unit=8)
    )
    shard_tables = [_table(*range(60))] * 3
    wanted = MixtureOrder(spec, shard_tables).sample_ids(0, 0, 6000)
    shared = MixtureOrder(spec, shard_tables)

    with ThreadPoolExecutor(8) as pool:
        starts = list(range(0, 6000, 50)) * 2
        found = list(pool.map(lambda start: shared.sample_ids(0, start, start + 50), starts))

    for start, sample_ids in zip(starts, found, strict=True):
        assert wanted[start : start + 50].tolist() == sample_ids.tolist()


def test_an_empty_dataset_is_refused_by_name() -> None:
    """A dataset without samples cannot be drawn from."""
    with pytest.raises(BadArgumentError, match="dataset d1 has no samples"):
        MixtureOrder(_mixture({}, {"choose": 3}), [_table(5), _table(0)])


def test_a_sample_that_no_dataset_has_is_refused() -> None:
    """What is looked for must be a sample of the mixture."""
    order = MixtureOrder(_mixture({}, batching=Batching.PER_DATASET), [_table(5)])

    with pytest.raises(BadArgumentError, match="sample id 5 is not in the mixture"):
        order.find(0, 5)


def test_a_range_past_the_end_is_refused() -> None:
    """A mixture has an end, too."""
    with pytest.raises(PositionPastEndError):
        MixtureOrder(_mixture({}), [_table(5)]).sample_ids(0, 0, 6)


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


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"schedule": null, "datasets": [{}]}'])
def test_json_that_is_no_mixture_is_refused(text: str) -> None:
    """Whatever is not a mixture is one clear error."""
    with pytest.raises(BadArgumentError, match="is not a mixture"):
        load_mixture(text)
