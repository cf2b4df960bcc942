"""Tests of how many reads of a store are under way: as many as bring more, and no more."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headrace.server.cache.fetch.concurrency import FIRST_LIMIT, Concurrency

_MOST = 64
_MIB = 1 << 20


def _run(
    limits: Concurrency, rate: Callable[[int], float], *, seconds: float, since: float = 0.0
) -> list[int]:
    """Let a store give ``rate(limit)`` MiB a second in reads of 2 MiB; return all limits."""
    now, seen = since, []
    while now < since + seconds:
        now += 2 / rate(limits.limit)
        limits.hold_back()
        limits.ended(2 * _MIB, now=now)
        seen.append(limits.limit)
    return seen


@pytest.mark.parametrize("level", [8, 24, 48])
def test_it_comes_near_to_where_the_store_levels_off(level: int) -> None:
    """From some reads on more of them bring nothing; it is found from below and from above."""
    seen = _run(Concurrency(_MOST), lambda limit: 20.0 * min(limit, level), seconds=120)

    late = seen[-len(seen) // 4 :]
    assert 0.7 * level <= sum(late) / len(late) <= max(1.5 * level, FIRST_LIMIT)


def test_it_grows_as_long_as_that_brings_more() -> None:
    """A store far away gets all reads that there may be."""
    assert _MOST in _run(Concurrency(_MOST), lambda limit: 10.0 * limit, seconds=30)


def test_twice_as_many_are_tried_after_the_first_reads() -> None:
    """The batches after the first need the most; what brings nothing is given up again."""
    seen = _run(Concurrency(_MOST), lambda limit: 20.0 * limit, seconds=0.15)
    level = _run(Concurrency(_MOST), lambda _: 320.0, seconds=1)

    assert 2 * FIRST_LIMIT == max(seen)
    assert {FIRST_LIMIT, 2 * FIRST_LIMIT} == set(level)
    assert FIRST_LIMIT == level[-1]


def test_it_shrinks_at_once_where_the_store_throttles() -> None:
    """A few refusals in a hundred reads make it a third less; one in a thousand nothing."""
    limits = Concurrency(_MOST)
    for number in range(2 * FIRST_LIMIT):
        if number % 8 == 0:
            limits.throttled()
        limits.ended(_MIB, now=float(number))

    assert limits.limit == int(FIRST_LIMIT * 2 / 3)


@pytest.mark.parametrize("away_s", [2.0, 20.0, 200.0])
def test_it_is_back_soon_after_a_store_was_away(away_s: float) -> None:
    """However long that was; higher limits are tried again later."""
    limits, now = Concurrency(_MOST), 0.0
    while now < away_s:
        now += 0.01
        limits.throttled()
        limits.ended(0, now=now)
    before = limits.limit

    _run(limits, lambda limit: 40.0 * limit, seconds=1.0, since=now)

    assert (2, int(FIRST_LIMIT * 2 / 3)) == (before, limits.limit)
    assert _MOST in _run(limits, lambda limit: 40.0 * limit, seconds=30, since=now + 1)


def test_fewer_reads_are_tried_after_a_store_throttled() -> None:
    """What it gave before is not the least that it is asked for."""
    limits = Concurrency(_MOST)
    for number in range(2 * FIRST_LIMIT):
        limits.throttled()
        limits.ended(_MIB, now=float(number))

    seen = _run(limits, lambda limit: 20.0 * min(limit, 4), seconds=120, since=100.0)

    assert min(seen[len(seen) // 2 :]) <= FIRST_LIMIT // 3


def test_one_refusal_changes_nothing() -> None:
    """S3 refuses one read in some thousand whatever it is asked for."""
    limits = Concurrency(_MOST)
    limits.throttled()
    for number in range(2 * FIRST_LIMIT):
        limits.ended(_MIB, now=float(number))

    assert FIRST_LIMIT == limits.limit


def test_refusals_by_chance_change_nothing() -> None:
    """One read in a thousand, over many windows: two of them in one window say nothing."""
    limits, chance = Concurrency(_MOST), random.Random(5)
    for number in range(200_000):
        if chance.random() < 1 / 1000:
            limits.throttled()
        limits.ended(2 * _MIB, now=number / 250)

    assert FIRST_LIMIT == limits.limit


def test_what_is_not_held_back_is_left_alone() -> None:
    """A loop that wants little says nothing about what the store could give."""
    limits = Concurrency(_MOST)
    for number in range(1000):
        limits.ended(_MIB, now=float(number))

    assert FIRST_LIMIT == limits.limit


@pytest.mark.parametrize("most", [1, 2, 3, 16, 64])
def test_it_stays_within_its_bounds(most: int) -> None:
    """Whatever the store does, there is one read at least, and never more than there may be."""
    limits = Concurrency(most)
    seen = _run(limits, lambda limit: 100.0 / limit, seconds=60)
    for number in range(1000):
        limits.throttled()
        limits.ended(_MIB, now=1000.0 + number)
        seen.append(limits.limit)

    assert 1 <= min(seen) <= max(seen) <= most
