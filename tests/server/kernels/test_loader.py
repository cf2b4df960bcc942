"""Claims about compiled code: it does what NumPy does, and its absence is no failure."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.order import walk_tables
from headrace.server.kernels.loader import KERNELS, Loader
from headrace.server.plan.find_samples import distinct_each, search
from headrace.storage import Starts, search_starts


@pytest.fixture(scope="module")
def compiled() -> Loader:
    """The compiled functions; they take seconds where Numba's cache is empty."""
    KERNELS.load()
    assert KERNELS.wait(280)
    return KERNELS


@settings(deadline=None)
@given(
    count=st.integers(1, 1 << 30),
    seed=st.integers(0, 1 << 32),
    places=st.lists(st.floats(0, 1, exclude_max=True), max_size=30),
)
@example(count=1, seed=0, places=[0.0])
@example(count=5, seed=0, places=[0.0, 0.3, 0.5, 0.7, 0.9])
def test_a_walk_is_that_of_the_order(
    compiled: Loader, count: int, seed: int, places: list[float]
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
    assert compiled.module is not None

    compiled.module.walk(tables, width, count, asked, found)

    assert walk_tables(tables, width, count, asked).tolist() == found.tolist()


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=1, max_size=5),
    first=st.integers(0, 1 << 40),
    spread=st.sampled_from([1, 1, 1000]),
)
def test_distinct_blocks_are_those_of_each_batch(
    compiled: Loader, batches: list[list[int]], first: int, spread: int
) -> None:
    """The blocks of several batches are told apart, close together or not."""
    blocks = np.array([first + spread * block for batch in batches for block in batch], np.int64)
    ends = list(itertools.accumulate(map(len, batches)))

    found = distinct_each(blocks, ends, kernels=compiled.module)
    same = distinct_each(blocks, ends, kernels=None)

    wanted = [sorted({first + spread * block for block in batch}) for batch in batches]
    assert wanted == [own.tolist() for own in found]
    assert wanted == [own.tolist() for own in same]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=50).filter(any),
    first=st.integers(0, 1 << 40),
    seed=st.integers(0, 99),
)
def test_spans_are_found_as_storage_does(
    compiled: Loader, lengths: list[int], first: int, seed: int
) -> None:
    """The span of each ordinal, and its place in it, also where spans are empty or uneven."""
    assert compiled.module is not None
    starts = Starts(np.cumsum([first, *lengths]))
    ordinals = np.random.default_rng(seed).integers(first, int(starts.values[-1]), 200)

    found = search(starts, ordinals)

    wanted = search_starts(starts, ordinals)
    assert [part.tolist() for part in wanted] == [part.tolist() for part in found]


def test_without_numba_nothing_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """A server without Numba goes on with NumPy and says so once."""
    loader = Loader("headrace.server.kernels.compiled", "numba_that_nobody_has")

    with caplog.at_level(logging.INFO, logger="headrace.server.kernels.loader"):
        loader.load()
        loader.load()
        has_kernels = loader.wait(60)

    assert not has_kernels
    assert ["batches are gathered with NumPy: numba_that_nobody_has is not installed"] == [
        record.getMessage().partition(",")[0] for record in caplog.records
    ]


def test_kernels_that_do_not_work_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """If Numba is there and fails, the server goes on with NumPy; its log has the reason."""
    loader = Loader("headrace.server._no_such_kernels", "numba")

    with caplog.at_level(logging.INFO, logger="headrace.server.kernels.loader"):
        loader.load()
        has_kernels = loader.wait(60)

    assert not has_kernels
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "does not work" in record.getMessage()


@settings(deadline=None)
@given(
    slots=st.lists(st.integers(-1, 5), min_size=1, max_size=12),
    chosen=st.sets(st.integers(0, 11), max_size=6),
)
def test_blocks_are_pinned_together_or_not_at_all(
    compiled: Loader, slots: list[int], chosen: set[int]
) -> None:
    """Of blocks that are all cached each gets a reader and its time, of others none does.

    It is the same for those that a stream says it will read.
    """
    assert compiled.module is not None
    slot_of = np.array(slots, np.int32)
    blocks = np.array(sorted(block for block in chosen if block < len(slots)), np.int64)
    pins, last_use, asked = np.ones(6, np.int32), np.zeros(6, np.int64), np.zeros(6, np.int64)
    found = np.empty(blocks.size, np.int32)

    hits = compiled.module.pin_all(slot_of, blocks, pins, last_use, 9, found)
    is_whole = compiled.module.ask(slot_of, blocks, asked, 7)

    wanted = [slots[block] for block in blocks.tolist()]
    own = wanted if min(wanted, default=1) > 0 else []
    assert (sum(slot > 0 for slot in wanted), len(own) == len(wanted)) == (hits, is_whole)
    assert (1 + np.bincount(own, minlength=6)).tolist() == pins.tolist()
    assert [9 * (slot in own) for slot in range(6)] == last_use.tolist()
    assert [7 * (slot in own) for slot in range(6)] == asked.tolist()
    assert wanted == found.tolist()


_FAR = 5 << 20  # more than what is copied past the caches


@pytest.mark.parametrize("first", [0, 1, 63])
def test_spans_of_any_length_are_copied(compiled: Loader, first: int) -> None:
    """Wherever they lie and go, also past the caches, and nothing beside them is written."""
    assert compiled.module is not None
    rng = np.random.default_rng(first)
    memory = rng.integers(0, 256, _FAR, dtype=np.uint8)
    lengths = np.concatenate([rng.integers(0, 5000, 900), rng.integers(0, 90_000, 90)])
    begins = rng.integers(0, _FAR - lengths.max(), lengths.size)
    target = np.zeros(int(lengths.sum()) + 64, np.uint8)
    out = target[first : first + int(lengths.sum())]

    assert compiled.module.copy_spans(memory, begins, lengths, out)

    spans = zip(begins.tolist(), lengths.tolist(), strict=True)
    assert out.size > _FAR
    assert np.array_equal(np.concatenate([memory[at : at + size] for at, size in spans]), out)
    assert not target[:first].any()
    assert not target[first + out.size :].any()


@pytest.mark.parametrize(("row_bytes", "first"), [(4096, 0), (12_001, 3), (3 << 20, 61)])
def test_long_rows_are_copied(compiled: Loader, row_bytes: int, first: int) -> None:
    """Each comes whole to where it goes, past the caches, and nothing beside it is written."""
    assert compiled.module is not None
    count = 1 + _FAR // row_bytes
    memory = np.random.default_rng(1).integers(0, 256, count * row_bytes, dtype=np.uint8)
    places = np.random.default_rng(2).permutation(count)
    target = np.zeros(count * row_bytes + 64, np.uint8)
    out = target[first : first + count * row_bytes]
    # One block, whose only part begins where the memory does.
    fields = np.array([[0, row_bytes, row_bytes, 0, row_bytes, 0]], np.int64)

    assert compiled.module.gather(
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
