"""Claims about packing: every document once, rows that never change in number, other neighbours.

How it could give a wrong sample: a piece lost or doubled where a document is cut; a row longer than
its length; a row count that an epoch's packing does not keep; an empty row; a row that depends on
what was opened before.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order.packing import (
    PackedGroup,
    PackedRows,
    Packing,
    best_fit,
    group_row_count,
    pack_group,
    packing_key,
)

_GOLDEN = [120, 5000, 600, 8192, 0, 20000, 64, 3000, 2500, 5100, 1, 700, 8191, 4096, 4096, 333]

_LENGTHS = st.one_of(
    st.lists(st.integers(0, 40), max_size=60),
    st.lists(st.sampled_from([0, 1, 7, 63, 64, 65, 128, 1000]), max_size=80),
    st.builds(lambda one, count: [one] * count, st.integers(0, 70), st.integers(0, 300)),
)
_PACKINGS = st.builds(
    lambda length, cut, marks: Packing(length, min(cut, length), marks),
    st.sampled_from([1, 2, 16, 63, 64, 65, 4096]),
    st.sampled_from([0, 0, 1, 5, 64]),
    st.integers(0, 2),
)


def _check(group: PackedGroup, lengths: NDArray[np.int64], packing: Packing, rows: int) -> None:
    assert rows == group.row_count
    assert (np.diff(group.starts) > 0).all()  # no row without a document
    table = group.pieces.astype(np.int64)
    totals = lengths + packing.marks
    # Each document's pieces cover it, end to end and once.
    order = np.lexsort((table[:, 1], table[:, 0]))
    for document, pieces in itertools.groupby(table[order].tolist(), key=lambda piece: piece[0]):
        at = 0
        for _, start, size, total, _ in pieces:
            assert start == at
            assert total == totals[document]
            at += size
        assert at == totals[document]
    assert set(np.flatnonzero(totals).tolist()) == set(table[:, 0].tolist())
    # And each row's pieces lie end to end and within it.
    for start, end in itertools.pairwise(group.starts.tolist()):
        at = 0
        for _, _, size, _, place in table[start:end].tolist():
            assert place == at
            assert size > 0
            at += size
        assert at <= packing.length


@settings(max_examples=150)
@given(_LENGTHS, _PACKINGS, st.integers(0, 2**63 - 1), st.integers(0, 5))
@example([5000] * 3, Packing(4096, 1), 0, 0)
@example([], Packing(8), 0, 0)
def test_every_document_comes_once_in_rows_that_never_change_in_number(
    lengths: list[int], packing: Packing, seed: int, epoch: int
) -> None:
    """Whatever the lengths, the options, the seed and the epoch."""
    found = np.array(lengths, np.int64)
    rows = group_row_count(found, packing)

    group = pack_group(found, packing, first_id=9, key=packing_key(seed, epoch), row_count=rows)

    _check(group, found, packing, rows)


@settings(max_examples=30)
@given(_LENGTHS, _PACKINGS, st.integers(0, 9))
def test_a_row_does_not_depend_on_what_was_opened_before(
    lengths: list[int], packing: Packing, seed: int
) -> None:
    """Rows of several groups, asked for in any order, one by one or together."""
    parts = [np.array(part, np.int64) for part in (lengths, lengths[::-1], lengths[::2]) if part]
    if not parts:
        return

    def opened() -> PackedRows:
        return PackedRows(
            packing,
            document_counts=np.array([len(part) for part in parts]),
            row_counts=np.array([group_row_count(part, packing) for part in parts]),
            raw_bytes=np.array([8 * int(part.sum()) for part in parts]),
            lengths=lambda group: parts[group],
        )

    rows, key = opened(), packing_key(seed, 1)
    ids = np.random.default_rng(seed).permutation(rows.row_count)
    together = rows.pieces(key, ids)
    edges = [0, *np.cumsum(together.counts).tolist()]

    for at, row in enumerate(ids.tolist()):
        alone = opened().pieces(key, np.array([row]))
        own = slice(edges[at], edges[at + 1])
        assert alone.sample_ids.tolist() == together.sample_ids[own].tolist()
        assert alone.table.tolist() == together.table[own].tolist()
        for sample_id in alone.sample_ids.tolist():
            assert row in rows.rows_of(key, sample_id).tolist()


def _lognormal(count: int, sigma: float) -> NDArray[np.int64]:
    random = np.random.default_rng(3)
    drawn = np.exp(random.normal(np.log(600), sigma, count))
    return np.maximum(drawn.astype(np.int64), 1)


def _bimodal(count: int) -> NDArray[np.int64]:
    return np.where(np.random.default_rng(3).random(count) < 0.7, 120, 5000)


def _plain_rows(lengths: NDArray[np.int64], packing: Packing) -> int:
    order = np.argsort(-lengths, kind="stable")
    limits = (packing.length, packing.cut, len(lengths))
    fitted = best_fit(order, np.zeros_like(lengths), lengths[order], limits)
    assert fitted is not None
    return fitted.row_count


@pytest.mark.parametrize("sigma", [1.0, 1.3])
def test_rows_are_full(sigma: float) -> None:
    """Of 16,384 lengths around 600, rows of 8,192 hold 99.5 % real tokens and more."""
    lengths, packing = _lognormal(1 << 14, sigma), Packing(8192)

    rows = group_row_count(lengths, packing)

    assert lengths.sum() / (rows * 8192) >= 0.995


def test_rows_of_two_lengths_are_as_full_as_can_be() -> None:
    """At least 99.5 % of what best fit decreasing reaches, and 99 % of real tokens with cuts."""
    lengths = _bimodal(1 << 14)

    plain, cut = (group_row_count(lengths, Packing(8192, cut)) for cut in (0, 1024))

    assert _plain_rows(lengths, Packing(8192)) / plain >= 0.995
    assert lengths.sum() / (cut * 8192) >= 0.99


@pytest.mark.parametrize("count", [1, 2, 10, 100, 255])
def test_small_groups_have_two_rows_more_at_most(count: int) -> None:
    """Than best fit decreasing needs for them."""
    lengths = _lognormal(count, 1.0) % 8000 + 1

    rows = group_row_count(lengths, Packing(8192))

    assert rows <= _plain_rows(lengths, Packing(8192)) + 2


@pytest.mark.parametrize("sigma", [1.0, 1.3])
def test_documents_meet_others_in_the_next_epoch(sigma: float) -> None:
    """At most 3 % of the pairs that share a row share one again."""
    lengths, packing = _lognormal(1 << 14, sigma), Packing(8192)
    rows = group_row_count(lengths, packing)

    def pairs(epoch: int) -> set[tuple[int, int]]:
        group = pack_group(lengths, packing, first_id=0, key=packing_key(7, epoch), row_count=rows)
        edges = itertools.pairwise(group.starts.tolist())
        return {
            pair
            for start, end in edges
            for pair in itertools.combinations(sorted(set(group.pieces[start:end, 0].tolist())), 2)
        }

    first, second = pairs(0), pairs(1)

    assert len(first & second) <= 0.03 * len(first)


def test_golden() -> None:
    """The rows of docs/order.md; to change them is to change the format."""
    lengths, packing = np.array(_GOLDEN), Packing(8192)
    cut = Packing(8192, cut=1024, marks=1)

    rows = group_row_count(lengths, packing), group_row_count(lengths, cut)
    groups = [
        pack_group(lengths, each, first_id=1000, key=packing_key(7, epoch), row_count=count)
        for each, epoch, count in ((packing, 0, rows[0]), (packing, 3, rows[0]), (cut, 0, rows[1]))
    ]

    assert rows == _GOLDEN_COUNTS
    assert [_text(group) for group in groups] == _GOLDEN_ROWS


def _text(group: PackedGroup) -> list[str]:
    rows = []
    for start, end in itertools.pairwise(group.starts.tolist()):
        pieces = group.pieces[start:end, :3].tolist()
        rows.append(" ".join(f"{document}[{at}:{at + size}]" for document, at, size in pieces))
    return rows


_GOLDEN_COUNTS = (9, 9)
_GOLDEN_ROWS = [
    [
        "3[0:8192]",
        "5[0:8192]",
        "5[8192:16384]",
        "12[0:8191] 10[0:1]",
        "14[0:4096] 13[0:4096]",
        "1[0:5000] 2[0:600]",
        "9[0:5100] 7[0:3000]",
        "5[16384:20000] 11[0:700] 15[0:333] 0[0:120]",
        "8[0:2500] 6[0:64]",
    ],
    [
        "3[0:8192]",
        "5[0:8192]",
        "5[8192:16384]",
        "12[0:8191] 10[0:1]",
        "9[0:5100] 7[0:3000]",
        "5[16384:20000] 15[0:333]",
        "1[0:5000] 8[0:2500] 2[0:600] 6[0:64]",
        "14[0:4096] 11[0:700]",
        "13[0:4096] 0[0:120]",
    ],
    [
        "3[0:8192]",
        "5[0:8192]",
        "5[8192:16384]",
        "12[0:8192]",
        "14[0:4097] 13[0:4095]",
        "13[4095:4097] 1[0:5001] 9[0:3189]",
        "9[3189:5101] 8[0:2501] 0[0:121] 4[0:1]",
        "5[16384:20001] 11[0:701] 15[0:334] 6[0:65]",
        "7[0:3001] 2[0:601] 10[0:2] 3[8192:8193]",
    ],
]


def test_a_row_count_that_is_not_of_the_lengths_is_refused() -> None:
    """Neither fewer rows than the documents need, nor more than they can fill."""
    lengths = np.array([5, 5, 5])

    for rows in (0, 1, 4):
        with pytest.raises(BadArgumentError, match="rows"):
            pack_group(lengths, Packing(8), first_id=0, key=0, row_count=rows)


@pytest.mark.parametrize(
    "options",
    [
        {"length": 0},
        {"length": -1},
        {"length": (1 << 22) + 1},
        {"length": 8, "cut": 9},
        {"length": 8, "cut": -1},
        {"length": 8, "marks": 3},
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, int]) -> None:
    """Each names its field."""
    with pytest.raises(BadArgumentError):
        Packing(**options)
