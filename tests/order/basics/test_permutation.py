"""Claims about the hash and the permutations that all else is made of."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.order.basics.hash import derive, derive_each, draw, draw_each
from headrace.order.basics.permutation import Network, permutation, permutations, permute

_words = st.integers(0, 2**63 - 1)


def _permute(key: int, count: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
    return permute(np.array([key], np.uint64), np.array([count]), places)


def _surprise(found: Counter[int], wanted: list[float]) -> float:
    # Chi-square in standard deviations from what the wanted counts give.
    square = sum((found[cell] - count) ** 2 / count for cell, count in enumerate(wanted))
    return abs(square - (len(wanted) - 1)) / math.sqrt(2 * (len(wanted) - 1))


@given(keys=st.lists(_words, min_size=1, max_size=5), words=st.lists(_words, max_size=4))
def test_arrays_hash_as_numbers_do(keys: list[int], words: list[int]) -> None:
    """Many keys at once absorb and draw what each does alone."""
    array = np.array(keys, np.uint64)
    absorbed = derive_each(array, *[np.full(len(keys), word) for word in words])
    counters = np.arange(len(keys), dtype=np.uint64)

    assert [derive(key, *words) for key in keys] == absorbed.tolist()
    drawn = [int(draw(key, counters[i : i + 1])[0]) for i, key in enumerate(keys)]
    assert drawn == draw_each(array, counters).tolist()


@pytest.mark.parametrize("count", range(2, 7))
def test_sorting_is_uniform_over_all_permutations(count: int) -> None:
    """Each of the n! permutations of few numbers comes equally often."""
    numbers = {order: i for i, order in enumerate(itertools.permutations(range(count)))}
    trials = 100 * len(numbers)
    keys = np.array([derive(0, 11, trial) for trial in range(trials)], np.uint64)

    orders = permutations(keys, np.full(trials, count)).reshape(trials, count).tolist()

    found = Counter(numbers[tuple(order)] for order in orders)
    assert _surprise(found, [100.0] * len(numbers)) < 4


@pytest.mark.parametrize("count", [70, 100, 1000, 10**6])
def test_the_network_is_uniform_in_pairs(count: int) -> None:
    """Two neighbouring places land anywhere, independently, over many keys."""
    trials = 20_000
    keys = np.array([derive(0, 12, trial) for trial in range(trials)], np.uint64)
    counts = np.full(trials, count)
    tenth = count // 10

    first = permute(keys, counts, np.full(trials, 7)) // tenth
    second = permute(keys, counts, np.full(trials, 8)) // tenth

    pairs = trials / (count * (count - 1))
    wanted = [pairs * tenth * (tenth - (a == b)) for a, b in itertools.product(range(10), repeat=2)]
    assert _surprise(Counter((first * 10 + second).tolist()), wanted) < 4


@given(key=_words, count=st.integers(1, 3000))
def test_the_network_is_a_bijection(key: int, count: int) -> None:
    """Every number has one place."""
    assert list(range(count)) == sorted(_permute(key, count, np.arange(count)).tolist())


@given(key=_words, count=st.integers(2**40, 2**50), first=st.integers(0, 2**39))
def test_the_network_stays_in_huge_ranges(key: int, count: int, first: int) -> None:
    """Places of huge ranges stay inside and apart."""
    permuted = _permute(key, count, np.arange(first, first + 50))

    assert 50 == len(set(permuted.tolist()))
    assert 0 <= permuted.min() <= permuted.max() < count


@given(keys=st.lists(_words, min_size=1, max_size=6), counts=st.data())
def test_several_permutations_are_each_their_own(keys: list[int], counts: st.DataObject) -> None:
    """Permuting several ranges at once changes none of them."""
    sizes = [counts.draw(st.integers(0, 50)) for _ in keys]
    joined = permutations(np.array(keys, np.uint64), np.array(sizes)).tolist()

    wanted = [permutation(key, size).tolist() for key, size in zip(keys, sizes, strict=True)]
    assert [number for each in wanted for number in each] == joined


def test_many_large_permutations_fit_no_word_and_still_work() -> None:
    """Ranges whose numbers and owners need more than 32 bits together are split up."""
    keys = np.arange(1 << 13, dtype=np.uint64)
    sizes = np.ones(len(keys), np.int64)
    sizes[5] = 1 << 20

    joined = permutations(keys, sizes)

    assert permutation(5, 1 << 20).tolist() == joined[5 : 5 + (1 << 20)].tolist()
    assert not joined[:5].any()
    assert not joined[5 + (1 << 20) :].any()


def test_adjacent_words_share_nothing() -> None:
    """Keys of neighbouring seeds, epochs and streams differ in half of their bits."""
    keys = [derive(0, seed, epoch) for seed in range(40) for epoch in range(40)]
    flips = [(a ^ b).bit_count() for a, b in itertools.pairwise(keys)]

    assert len(keys) == len(set(keys))
    assert 31.5 < sum(flips) / len(flips) < 32.5


@given(key=_words, count=st.integers(1, 2**22), first=st.integers(0, 2**21))
def test_tables_permute_as_the_network_does(key: int, count: int, first: int) -> None:
    """Looking the rounds' draws up gives what making each of them does, also in the surplus."""
    places = np.arange(min(first, count - 1), min(first + 500, count))

    assert _permute(key, count, places).tolist() == Network(key, count).at(places).tolist()
