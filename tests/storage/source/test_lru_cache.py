"""Tests of what a cache keeps: the last values within its bounds, and no failure."""

from __future__ import annotations

import pytest

from headrace.storage.source.lru_cache import LruCache


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
