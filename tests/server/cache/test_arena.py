"""Tests of the arena: no extent overlaps another, and everything comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.server.cache.memory.arena import GRAIN, ExtentAllocator, map_memory, rounded


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=60))
def test_extents_never_overlap_and_come_back(steps: list[tuple[bool, int]]) -> None:
    """Whatever is taken and given back, extents are disjoint, aligned, counted and rejoined."""
    allocator = ExtentAllocator(10_000)
    taken: list[tuple[int, int]] = []
    for is_take, number in steps:
        if is_take:
            start = allocator.take(number)
            if start is not None:
                taken.append((start, number))
        elif taken:
            allocator.give(*taken.pop(number % len(taken)))
        ends = [0]
        for start, length in sorted(taken):
            assert start >= ends[-1]
            assert start % GRAIN == 0
            ends.append(start + rounded(length))
        assert ends[-1] <= allocator.size
        assert sum(rounded(length) for _, length in taken) == allocator.used

    for start, length in taken:
        allocator.give(start, length)
    assert 0 == allocator.take(allocator.size)


def test_the_best_fit_is_taken() -> None:
    """A small extent goes into the smallest hole that holds it."""
    allocator = ExtentAllocator(64 * 10)
    starts = [allocator.take(64 * size) for size in (2, 1, 1, 1, 4)]
    for start, size in zip(starts[::2], (2, 1, 4), strict=True):
        assert start is not None
        allocator.give(start, 64 * size)

    assert starts[2] == allocator.take(64)
    assert starts[0] == allocator.take(65)


def test_a_size_is_rounded_down_to_whole_lines() -> None:
    """An arena never hands out more than its budget."""
    allocator = ExtentAllocator(1000)

    assert 960 == allocator.size
    assert allocator.take(961) is None


def test_memory_is_seen_as_rows_of_any_length() -> None:
    """Rows are views: what is written to one is read in the other."""
    memory = map_memory(100)

    memory.rows(30)[2] = bytes([7] * 30)

    assert (3,) == memory.rows(30).shape
    assert 7 == memory.array[60]
