"""Claims about runs over packed rows: killed and rescaled as often as one likes, nothing is lost.

How they could give a wrong sample: rows that depend on the world size, on how positions are cut
into batches, or on which process opened which group first; a piece that comes twice, or never.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.order import EndMode, EpochPlan, Order, OrderSpec, rank_batches
from headrace.order.packing import PackedRows, Packing, group_row_count, packing_key

_LENGTHS = st.one_of(
    st.lists(st.integers(0, 40), max_size=40),
    st.lists(st.sampled_from([0, 1, 7, 63, 64, 65, 128, 1000]), max_size=40),
)
_PACKINGS = st.builds(
    lambda length, cut, marks: Packing(length, min(cut, length), marks),
    st.sampled_from([2, 16, 63, 64, 65, 512]),
    st.sampled_from([0, 0, 1, 5, 64]),
    st.integers(0, 2),
)
_Row = list[tuple[int, ...]]


@dataclass(frozen=True)
class _Corpus:
    """Documents, and how they become rows.

    Attributes:
        lengths: Of the documents of each group.
        packing: How they are packed.
        order: The order of the rows.
    """

    lengths: list[NDArray[np.int64]]
    packing: Packing
    order: OrderSpec

    def rows(self) -> PackedRows:
        """Open the rows, as a process does that knows nothing yet."""
        return PackedRows(
            self.packing,
            document_counts=np.array([len(each) for each in self.lengths]),
            row_counts=np.array([group_row_count(each, self.packing) for each in self.lengths]),
            raw_bytes=np.array([8 * int(each.sum()) for each in self.lengths]),
            lengths=lambda group: self.lengths[group],
        )


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=2000)
@given(
    groups=st.lists(_LENGTHS.filter(any), min_size=1, max_size=4),
    packing=_PACKINGS,
    batch=st.integers(1, 9),
    worlds=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), max_size=4),
    order=st.builds(
        OrderSpec,
        seed=st.integers(0, 99),
        shuffle=st.booleans(),
        shuffle_samples=st.integers(1, 40),
    ),
)
def test_runs_that_are_killed_and_rescaled_read_each_document_once(
    groups: list[list[int]],
    packing: Packing,
    batch: int,
    worlds: list[tuple[int, int]],
    order: OrderSpec,
) -> None:
    """Two epochs by several worlds, each of which is killed after some batches, then by one rank.

    Its rows are those of a run that nobody disturbs, and their pieces are each document, whole.
    """
    corpus = _Corpus([np.array(group, np.int64) for group in groups], packing, order)
    totals = np.concatenate(corpus.lengths) + packing.marks
    for epoch in (0, 1):
        undisturbed = _read_all(corpus, epoch, [], batch)
        disturbed = _read_all(corpus, epoch, worlds, batch)

        assert undisturbed == disturbed
        pieces = sorted(piece[:3] for row in undisturbed for piece in row)
        held: dict[int, int] = {}
        for document, start, size in pieces:
            assert held.get(document, 0) == start
            held[document] = start + size
        assert {at: total for at, total in enumerate(totals.tolist()) if total} == held


def _read_all(corpus: _Corpus, epoch: int, worlds: list[tuple[int, int]], batch: int) -> list[_Row]:
    """Return the rows that a run reads, in their order.

    Args:
        corpus: The documents.
        epoch: The epoch.
        worlds: Ranks, at most as many as a batch has rows, and the batches until they are killed;
            one rank reads the rest.
        batch: Rows of a global batch.
    """
    found: list[_Row] = []
    for world, stop in [*worlds, (1, 1 << 40)]:
        size = min(world, batch)
        plan = EpochPlan(corpus.rows().row_count, len(found), batch, EndMode.UNEVEN)
        ranks = [_read(corpus, epoch, plan, (rank, size), stop) for rank in range(size)]
        for parts in zip(*ranks, strict=True):
            found += itertools.chain.from_iterable(parts)
    return found


def _read(
    corpus: _Corpus, epoch: int, plan: EpochPlan, place: tuple[int, int], stop: int
) -> list[list[_Row]]:
    """Return what one rank of a world reads: the rows of each batch, up to some."""
    rows, key = corpus.rows(), packing_key(corpus.order.seed, epoch)
    order = Order(corpus.order, rows.table)
    batches = rank_batches(order, plan, epoch=epoch, rank=place[0], world_size=place[1])
    return [_pieces_of(rows, key, row_ids) for _, row_ids in itertools.islice(batches, stop)]


def _pieces_of(rows: PackedRows, key: int, row_ids: NDArray[np.int64]) -> list[_Row]:
    found = rows.pieces(key, row_ids)
    numbers = np.column_stack([found.sample_ids, found.table]).tolist()
    edges = itertools.pairwise([0, *np.cumsum(found.counts).tolist()])
    return [[tuple(piece) for piece in numbers[start:end]] for start, end in edges]
