"""Tests of what the cache's folder keeps: an exact budget, fair parts, no churn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.server.cache.disk.disk_index import DiskIndex


def _put(index: DiskIndex, name: str, block: int, size: int = 1) -> bool:
    _, has_room = index.make_room(name, size)
    if has_room:
        index.add(name, block, size)
    return has_room


def _epoch(index: DiskIndex, name: str, blocks: list[int]) -> int:
    """Read blocks as a server does; return how many were there."""
    hits = 0
    for block in blocks:
        if index.read(name, block):
            hits += 1
        else:
            _put(index, name, block)
    return hits


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(1, 60))))
def test_the_budget_holds(puts: list[tuple[str, int, int]]) -> None:
    """Whatever is put, of whatever size, the total never passes the budget and is a true sum."""
    index = DiskIndex(100)
    index.open("a", 10)
    for name, block, size in puts:
        if not index.read(name, block):
            _put(index, name, block, size)
        assert 0 <= index.used <= 100

    for name in "abc":
        for block in range(10):
            index.remove(name, block)
    assert 0 == index.used


def test_epochs_hit_what_there_is_room_for() -> None:
    """A folder of a third of the dataset serves a third of every later epoch, in any order."""
    index = DiskIndex(30)
    index.open("a", 90)
    blocks = list(range(90))

    hits = [_epoch(index, "a", blocks[turn:] + blocks[:turn]) for turn in (0, 31, 5, 77)]

    assert [0, 30, 30, 30] == hits


def test_what_is_not_read_for_two_epochs_makes_way() -> None:
    """A host that reads another part of the data from now on keeps that part."""
    index = DiskIndex(30)
    index.open("a", 90)
    _epoch(index, "a", list(range(30)))

    hits = [_epoch(index, "a", list(range(30, 60))) for _ in range(9)]

    assert 0 == hits[0]
    assert 30 == hits[-1]


def test_a_second_dataset_gets_its_part() -> None:
    """It takes half of the room from one that fills all, and no more."""
    index = DiskIndex(30)
    index.open("a", 90)
    _epoch(index, "a", list(range(90)))
    index.open("b", 90)

    _epoch(index, "b", list(range(90)))

    assert [15, 15] == [_epoch(index, name, list(range(90))) for name in "ba"]


def test_datasets_that_are_not_served_make_way_first() -> None:
    """What an older version left goes before anything that is served."""
    index = DiskIndex(30)
    index.open("old", 20)
    index.open("old", 20)
    _epoch(index, "old", list(range(20)))
    index.release("old")
    index.open("new", 30)
    _epoch(index, "new", list(range(10)))
    assert 20 == _epoch(index, "old", list(range(20)))
    index.release("old")

    _epoch(index, "new", list(range(30)))

    assert 30 == _epoch(index, "new", list(range(30)))
