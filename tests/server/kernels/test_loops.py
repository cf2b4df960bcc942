"""Claims about compiled loops: they do what NumPy does, and stay within what they are given."""

from __future__ import annotations

import itertools
from random import Random
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.order import walk_tables
from headrace.order.packing import best_fit
from headrace.server.kernels.loader import LOOPS
from headrace.server.plan.compiled import distinct_each, search
from headrace.storage import Starts, search_starts


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    """The compiled loops."""
    return LOOPS


@settings(deadline=None)
@given(
    count=st.integers(1, 1 << 30),
    seed=st.integers(0, 1 << 32),
    places=st.lists(st.floats(0, 1, exclude_max=True), max_size=30),
)
@example(count=1, seed=0, places=[0.0])
@example(count=5, seed=0, places=[0.0, 0.3, 0.5, 0.7, 0.9])
def test_a_walk_is_that_of_the_order(
    compiled: ModuleType, count: int, seed: int, places: list[float]
) -> None:
    """Numbers looked up in the tables of a network are the same, also in its surplus."""
    width = int(np.ceil(np.sqrt(count)))
    height = -(-count // width)
    rng = np.random.default_rng(seed)
    tables = np.zeros((12, max(width, height)), np.uint16)
    tables[0::2] = rng.integers(0, width, tables[0::2].shape)
    tables[1::2] = rng.integers(0, height, tables[1::2].shape)
    asked = np.array([int(place * count) for place in places], np.int64)
    found = np.empty_like(asked)

    compiled.walk(tables, width, count, asked, found)

    assert walk_tables(tables, width, count, asked).tolist() == found.tolist()


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=1, max_size=5),
    first=st.integers(0, 1 << 40),
    spread=st.sampled_from([1, 1, 1000]),
)
def test_distinct_blocks_are_those_of_each_batch(
    batches: list[list[int]], first: int, spread: int
) -> None:
    """The blocks of several batches are told apart, close together or not."""
    blocks = np.array([first + spread * block for batch in batches for block in batch], np.int64)
    ends = list(itertools.accumulate(map(len, batches)))

    found = distinct_each(blocks, ends)

    wanted = [sorted({first + spread * block for block in batch}) for batch in batches]
    assert wanted == [own.tolist() for own in found]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=50).filter(any),
    first=st.integers(0, 1 << 40),
    seed=st.integers(0, 99),
)
def test_spans_are_found_as_storage_does(lengths: list[int], first: int, seed: int) -> None:
    """The span of each ordinal, and its place in it, also where spans are empty or uneven."""
    starts = Starts(np.cumsum([first, *lengths]))
    ordinals = np.random.default_rng(seed).integers(first, int(starts.values[-1]), 200)

    found = search(starts, ordinals)

    wanted = search_starts(starts, ordinals)
    assert [part.tolist() for part in wanted] == [part.tolist() for part in found]


@settings(deadline=None)
@given(
    slots=st.lists(st.integers(-1, 5), min_size=1, max_size=12),
    chosen=st.sets(st.integers(0, 11), max_size=6),
)
def test_blocks_are_pinned_together_or_not_at_all(
    compiled: ModuleType, slots: list[int], chosen: set[int]
) -> None:
    """Of blocks that are all cached each gets a reader and its time, of others none does.

    It is the same for those that a stream says it will read.
    """
    slot_of = np.array(slots, np.int32)
    blocks = np.array(sorted(block for block in chosen if block < len(slots)), np.int64)
    pins, last_use, asked = np.ones(6, np.int32), np.zeros(6, np.int64), np.zeros(6, np.int64)
    found = np.empty(blocks.size, np.int32)

    hits = compiled.pin_all(slot_of, blocks, pins, last_use, 9, found)
    is_whole = compiled.ask(slot_of, blocks, asked, 7)

    wanted = [slots[block] for block in blocks.tolist()]
    own = wanted if min(wanted, default=1) > 0 else []
    assert (sum(slot > 0 for slot in wanted), len(own) == len(wanted)) == (hits, is_whole)
    assert (1 + np.bincount(own, minlength=6)).tolist() == pins.tolist()
    assert [9 * (slot in own) for slot in range(6)] == last_use.tolist()
    assert [7 * (slot in own) for slot in range(6)] == asked.tolist()
    assert wanted == found.tolist()


_FAR = 5 << 20  # more than what is copied past the caches
_OUT_OF_ORDER = 0.5  # of examples


@pytest.mark.parametrize("first", [0, 1, 63])
def test_spans_of_any_length_are_copied(compiled: ModuleType, first: int) -> None:
    """Wherever they lie and go, also past the caches, and nothing beside them is written."""
    rng = np.random.default_rng(first)
    memory = rng.integers(0, 256, _FAR, dtype=np.uint8)
    lengths = np.concatenate([rng.integers(0, 5000, 900), rng.integers(0, 90_000, 90)])
    starts = rng.integers(0, _FAR - lengths.max(), lengths.size)
    target = np.zeros(int(lengths.sum()) + 64, np.uint8)
    out = target[first : first + int(lengths.sum())]

    assert compiled.copy_spans(memory, starts, lengths, out)

    spans = zip(starts.tolist(), lengths.tolist(), strict=True)
    assert out.size > _FAR
    assert np.array_equal(np.concatenate([memory[at : at + size] for at, size in spans]), out)
    assert not target[:first].any()
    assert not target[first + out.size :].any()


@pytest.mark.parametrize(("row_bytes", "first"), [(4096, 0), (12_001, 3), (3 << 20, 61)])
def test_long_rows_are_copied(compiled: ModuleType, row_bytes: int, first: int) -> None:
    """Each comes whole to where it goes, past the caches, and nothing beside it is written."""
    count = 1 + _FAR // row_bytes
    memory = np.random.default_rng(1).integers(0, 256, count * row_bytes, dtype=np.uint8)
    places = np.random.default_rng(2).permutation(count)
    target = np.zeros(count * row_bytes + 64, np.uint8)
    out = target[first : first + count * row_bytes]
    # One block, whose only part begins where the memory does.
    fields = np.array([[0, row_bytes, row_bytes, 0, row_bytes, 0]], np.int64)

    assert compiled.gather(
        memory,
        np.zeros(1, np.int32),
        np.zeros((1, 1), np.int64),
        np.zeros(count, np.int64),
        places,
        fields,
        out,
    )

    rows = memory.reshape(count, row_bytes)
    assert np.array_equal(rows[places].reshape(-1), out)
    assert not target[:first].any()
    assert not target[first + out.size :].any()


@settings(deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 4, 4, 4, 4, 8, 12]), min_size=1, max_size=12),
    count=st.integers(0, 150),
    order=st.randoms(use_true_random=False),
)
@example(sizes=[4] * 11, count=67, order=Random(0))
def test_columns_are_split_from_rows(
    compiled: ModuleType, sizes: list[int], count: int, order: Random
) -> None:
    """Columns of any sizes, in any number and order, are those of their rows."""
    edges = np.cumsum([0, *sizes])
    row_bytes = int(edges[-1])
    rows = np.random.default_rng(1).integers(0, 256, (99, row_bytes), dtype=np.uint8)
    places = np.random.default_rng(count).integers(0, len(rows), count)
    columns = list(zip(edges.tolist(), sizes, strict=False))
    if order.random() < _OUT_OF_ORDER:
        order.shuffle(columns)
    ends = np.cumsum([0, *(count * size for _, size in columns)]).tolist()
    fields = [
        (0, row_bytes, row_bytes, at, size, to)
        for (at, size), to in zip(columns, ends, strict=False)
    ]
    out = np.zeros(ends[-1], np.uint8)

    assert compiled.gather(
        rows.reshape(-1),
        np.zeros(1, np.int32),
        np.zeros((1, 1), np.int64),
        np.zeros(count, np.int64),
        places,
        np.array(fields, np.int64),
        out,
    )

    expected = [rows[places, at : at + size].reshape(-1) for at, size in columns]
    assert np.array_equal(np.concatenate(expected), out)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 200), max_size=80),
    length=st.integers(1, 200),
    cut=st.integers(0, 60),
    rows=st.integers(0, 100),
)
@example(sizes=[64, 64, 1, 63, 128], length=128, cut=0, rows=4)
@example(sizes=[200] * 3, length=200, cut=1, rows=2)
def test_documents_find_the_rows_of_the_order(
    compiled: ModuleType, sizes: list[int], length: int, cut: int, rows: int
) -> None:
    """Each goes where `headrace.order.packing.best_fit` puts it, or there are too few rows."""
    placed = np.array([min(size, length) for size in sizes], np.int64)
    documents = np.arange(placed.size)
    starts = documents * 7
    out = np.empty((placed.size + rows, 4), np.int64)

    count, used = compiled.best_fit(documents, starts, placed, length, cut, rows, out)

    wanted = best_fit(documents, starts, placed, (length, cut, rows))
    if wanted is None:
        assert -1 == count
        return
    assert (len(wanted.pieces), wanted.row_count) == (count, used)
    assert wanted.pieces.tolist() == out[:count].tolist()


@pytest.mark.parametrize(
    ("block", "slot", "column"),
    [
        (9, 0, (0, 8, 8, 0, 8, 0)),  # no such block
        (-1, 0, (0, 8, 8, 0, 8, 0)),
        (0, 7, (0, 8, 8, 0, 8, 0)),  # no such slot
        (0, -1, (0, 8, 8, 0, 8, 0)),
        (0, 0, (1, 8, 8, 0, 8, 0)),  # no such part
        (0, 0, (0, 8, 8, 4, 8, 0)),  # a value beyond its row
        (0, 0, (0, 8, 8, -8, 8, 0)),
        (0, 0, (0, 8, 8, 0, 8, 1)),  # a column beyond what it is gathered to
        (0, 0, (0, 8, 8, 0, -8, 0)),
        (0, 0, (0, 8, 1 << 40, 0, 8, 0)),  # a block beyond the arena
    ],
)
def test_tables_that_point_outside_are_refused(
    compiled: ModuleType, block: int, slot: int, column: tuple[int, ...]
) -> None:
    """Nothing is read that does not lie in what the loop was given."""
    tables = (np.array([slot], np.int32), np.array([[1, 1]], np.int64))
    sample = (np.array([block]), np.array([0]))

    found = compiled.gather(
        np.zeros(64, np.uint8), *tables, *sample, np.array([column]), np.zeros(8, np.uint8)
    )

    assert not found


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "takes 1 arguments and was given 0"),
        ((np.zeros(300, np.int8),), "argument 0 is not a contiguous array of uint8"),
        ((np.zeros((3, 100), np.uint8),), "argument 0 is not a contiguous array of uint8"),
        ((np.zeros(600, np.uint8)[::2],), "argument 0 is not a contiguous array of uint8"),
    ],
)
def test_other_arrays_are_refused(
    compiled: ModuleType, arguments: tuple[object, ...], reason: str
) -> None:
    """Their types, dimensions and strides are looked at, and none is converted."""
    with pytest.raises(TypeError, match=reason):
        compiled.xxh3(*arguments)


def test_an_array_that_is_written_to_must_be_writable(compiled: ModuleType) -> None:
    """Nobody's read-only memory is changed."""
    sums = np.zeros(8, np.uint64)
    sums.flags.writeable = False

    with pytest.raises(TypeError, match="writable array of uint64"):
        compiled.begin_hash(sums)
