"""Tests of what the cache's folder keeps: an exact budget, fair parts, no churn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.server.cache.disk.disk_index import Shelves


def _put(shelves: Shelves, name: str, block: int, size: int = 1) -> bool:
    _, has_room = shelves.make_room(name, size)
    if has_room:
        shelves.add(name, block, size)
    return has_room


def _epoch(shelves: Shelves, name: str, blocks: list[int]) -> int:
    """Read blocks as a server does; return how many were there."""
    hits = 0
    for block in blocks:
        if shelves.read(name, block):
            hits += 1
        else:
            _put(shelves, name, block)
    return hits


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(1, 60))))
def test_the_budget_holds(puts: list[tuple[str, int, int]]) -> None:
    """Whatever is put, of whatever size, the total never passes the budget and is a true sum."""
    shelves = Shelves(100)
    shelves.open("a", 10)
    for name, block, size in puts:
        if not shelves.read(name, block):
            _put(shelves, name, block, size)
        assert 0 <= shelves.used <= 100

    for name in "abc":
        for block in range(10):
            shelves.remove(name, block)
    assert 0 == shelves.used


def test_epochs_hit_what_there_is_room_for() -> None:
    """A folder of a third of the dataset serves a third of every later epoch, in any order."""
    shelves = Shelves(30)
    shelves.open("a", 90)
    blocks = list(range(90))

    hits = [_epoch(shelves, "a", blocks[turn:] + blocks[:turn]) for turn in (0, 31, 5, 77)]

    assert [0, 30, 30, 30] == hits


def test_what_is_not_read_for_two_epochs_makes_way() -> None:
    """A host that reads another part of the data from now on keeps that part."""
    shelves = Shelves(30)
    shelves.open("a", 90)
    _epoch(shelves, "a", list(range(30)))

    hits = [_epoch(shelves, "a", list(range(30, 60))) for _ in range(9)]

    assert 0 == hits[0]
    assert 30 == hits[-1]


def test_a_second_dataset_gets_its_part() -> None:
    """It takes half of the room from one that fills all, and no more."""
    shelves = Shelves(30)
    shelves.open("a", 90)
    _epoch(shelves, "a", list(range(90)))
    shelves.open("b", 90)

    _epoch(shelves, "b", list(range(90)))

    assert [15, 15] == [_epoch(shelves, name, list(range(90))) for name in "ba"]


def test_datasets_that_are_not_served_make_way_first() -> None:
    """What an older version left goes before anything that is served."""
    shelves = Shelves(30)
    shelves.open("old", 20)
    shelves.open("old", 20)
    _epoch(shelves, "old", list(range(20)))
    shelves.release("old")
    shelves.open("new", 30)
    _epoch(shelves, "new", list(range(10)))
    assert 20 == _epoch(shelves, "old", list(range(20)))
    shelves.release("old")

    _epoch(shelves, "new", list(range(30)))

    assert 30 == _epoch(shelves, "new", list(range(30)))
