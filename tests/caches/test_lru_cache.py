"""Tests of what a cache keeps: the last values within its bounds, and no failure."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.caches import BoundedCache, LruCache
from support.threads import at_once


def test_a_value_is_made_once_until_others_push_it_out() -> None:
    """Of three keys in a place for two, the one that was asked for longest ago is made again."""
    made: list[str] = []
    kept: LruCache[str, str] = LruCache(2)

    def value(key: str) -> str:
        return kept.get(key, lambda: made.append(key) or key.upper())  # type: ignore[func-returns-value]

    assert ["A", "B", "A", "C", "A", "B"] == [value(key) for key in "abacab"]
    assert ["a", "b", "c", "b"] == made


def test_a_value_of_none_is_kept_and_a_failure_is_not() -> None:
    """None is an answer; an error is that of one caller."""
    kept: LruCache[str, None] = LruCache(2)
    calls = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kept.get("a", fail)
    for _ in range(2):
        kept.get("b", lambda: calls.append(2))

    assert [1, 1, 2] == calls


def test_values_stay_within_their_bytes() -> None:
    """The oldest go first, what is dropped makes room, and a larger value stays alone."""
    made: list[int] = []
    kept: LruCache[int, bytes] = LruCache(max_bytes=100, size=len)

    def value(length: int) -> bytes:
        return kept.get(length, lambda: made.append(length) or bytes(length))  # type: ignore[func-returns-value]

    for length in (40, 50, 50, 20, 50, 40):  # the 40 went for the 20
        assert length == len(value(length))
    kept.drop(40)
    for length in (30, 50, 200, 200, 30):  # the 50 and the 20 stayed; all went for the 200
        value(length)

    assert [40, 50, 20, 40, 30, 200, 30] == made


def _made(made: list[int], key: int) -> NDArray[np.uint8]:
    made.append(key)
    return np.zeros(40, np.uint8)


def test_a_cache_stays_within_its_budget() -> None:
    """The values used last are kept, up to the budget."""
    cache: BoundedCache[int, NDArray[np.uint8]] = BoundedCache(100)

    made: list[int] = []
    for key in (0, 1, 2, 0, 3):
        cache.get_once(key, partial(_made, made, key))

    assert 80 == cache.held_bytes
    for key in (0, 3, 2):
        cache.get_once(key, partial(_made, made, key))
    assert [0, 1, 2, 0, 3, 2] == made


def test_a_value_that_is_found_counts_as_used() -> None:
    """What is looked up is not the next to go, and what is not held is not made."""
    cache: BoundedCache[int, NDArray[np.uint8]] = BoundedCache(100)

    first = cache.get_once(0, lambda: np.zeros(40, np.uint8))
    cache.get_once(1, lambda: np.zeros(40, np.uint8))
    assert first is cache.find(0)
    cache.get_once(2, lambda: np.zeros(40, np.uint8))

    assert first is cache.find(0)
    assert None is cache.find(1)
    assert 80 == cache.held_bytes


def test_a_value_larger_than_the_budget_is_kept() -> None:
    """What every call needs is not made again for every call."""
    cache: BoundedCache[int, NDArray[np.uint8]] = BoundedCache(10)

    first = cache.get_once(0, lambda: np.zeros(40, np.uint8))

    assert first is cache.get_once(0, lambda: np.ones(40, np.uint8))


def test_a_value_is_made_once_for_all_threads() -> None:
    """Threads that ask for the same value wait for one of them to make it."""
    cache: BoundedCache[int, NDArray[np.uint8]] = BoundedCache(100)
    made: list[int] = []
    barrier = threading.Barrier(8)

    def ask(_: int) -> None:
        barrier.wait(timeout=60)
        cache.get_once(0, lambda: _made(made, 0))

    at_once(ask, range(8))

    assert [0] == made
