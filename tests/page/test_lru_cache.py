"""Tests of what a page keeps: the last values, and no failure."""

from __future__ import annotations

import pytest

from headrace.page.data.lru_cache import LruCache


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
