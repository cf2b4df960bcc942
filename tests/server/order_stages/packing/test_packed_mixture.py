"""Claims about runs over mixtures of packed rows, killed and rescaled as often as one likes.

How they could give a wrong sample: a pass that is packed by the epoch it is read in, so that its
documents are lost or come twice where epochs share it; rows that depend on the world size, on how
positions are cut into batches, or on which process opened what first; a document that is skipped
under the id that another dataset has it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.order import (
    Batching,
    Choice,
    EndMode,
    EpochPlan,
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    OrderSpec,
    Skips,
)
from headrace.order.packing import (
    PackedRows,
    Packing,
    group_row_count,
    pass_packing_key,
    shared_groups,
)
from headrace.server.order_stages.packing.packed_rows import PackedFinder
from headrace.server.plan.find_samples import BatchPlaces
from headrace.server.plan.planned_batches import ranges_of
from headrace.storage import Search, search_starts

_Row = tuple[int, list[tuple[int, ...]]]
_LENGTHS = st.one_of(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.lists(st.sampled_from([0, 1, 7, 63, 64, 65, 128, 1000]), min_size=1, max_size=30),
)
_PACKINGS = st.builds(
    lambda length, cut, marks: Packing(length, min(cut, length), marks),
    st.sampled_from([16, 63, 64, 65, 512]),
    st.sampled_from([0, 0, 1, 5, 64]),
    st.integers(0, 2),
)
_AMOUNTS: st.SearchStrategy[list[dict[str, Any]]] = st.one_of(
    st.lists(st.integers(1, 9).map(lambda weight: {"proportion": weight / 10}), min_size=3),
    st.lists(st.sampled_from([{}, {"repeat": 0.4}, {"repeat": 2.3}, {"choose": 7}]), min_size=3),
)


class _Places:
    """Documents that lie in a block of their own each."""

    fingerprint = "0" * 32

    def locate(
        self, sample_ids: NDArray[np.int64], *, search: Search = search_starts
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return that."""
        del search
        return sample_ids, np.zeros_like(sample_ids)


@dataclass(frozen=True)
class _Corpora:
    """Documents of several datasets, and how they become rows.

    Attributes:
        lengths: Of the documents of each group of each dataset.
        packing: How they are packed.
        spec: The order of the rows.
        skips: Documents to leave out, by their ids in the mixture.
    """

    lengths: list[list[NDArray[np.int64]]]
    packing: Packing
    spec: MixtureSpec
    skips: list[int]

    @property
    def first_ids(self) -> NDArray[np.int64]:
        """Where the documents of each begin."""
        return np.cumsum([0, *(sum(map(len, groups)) for groups in self.lengths)])

    def rows(self) -> list[PackedRows]:
        """Open the rows, as a process does that knows nothing yet."""
        return shared_groups([self._rows(groups) for groups in self.lengths])

    def _rows(self, groups: list[NDArray[np.int64]]) -> PackedRows:
        return PackedRows(
            self.packing,
            document_counts=np.array([len(each) for each in groups]),
            row_counts=np.array([group_row_count(each, self.packing) for each in groups]),
            raw_bytes=np.array([8 * int(each.sum()) for each in groups]),
            lengths=groups.__getitem__,
        )

    def finder(self) -> PackedFinder:
        """Open what finds them."""
        rows = self.rows()
        return PackedFinder(
            MixtureOrder(self.spec, [each.table for each in rows]),
            rows,
            _Places(),
            first_ids=self.first_ids,
            key=partial(pass_packing_key, self.spec.order.seed),
            fingerprint="0" * 32,
            lane_bytes=0,
            skips=Skips(self.skips) if self.skips else None,
        )


@st.composite
def _corpora(draw: st.DrawFn) -> _Corpora:
    packing = draw(_PACKINGS)
    several = draw(
        st.lists(st.lists(_LENGTHS.filter(any), min_size=1, max_size=3), min_size=1, max_size=3)
    )
    amounts = draw(_AMOUNTS)
    datasets = tuple(
        MixtureDataset(f"d{at}", f"{at:032x}", choice=_choice(draw, amounts[at]), **amounts[at])
        for at in range(len(several))
    )
    has_weights = "proportion" in amounts[0]
    order = OrderSpec(
        seed=draw(st.integers(0, 99)),
        shuffle=draw(st.booleans()),
        shuffle_samples=draw(st.integers(1, 40)),
        lanes=draw(st.sampled_from([1, 1, 2, 3])),
        unit=draw(st.sampled_from([3, 6])),
    )
    spec = MixtureSpec(
        datasets,
        order,
        batching=draw(st.sampled_from([Batching.RANDOM, Batching.STRATIFIED])),
        epoch_size=draw(st.integers(0, 60)) if has_weights else 0,
    )
    lengths = [[np.array(group, np.int64) for group in groups] for groups in several]
    count = sum(len(group) for groups in lengths for group in groups)
    skips = draw(st.lists(st.integers(0, count - 1), max_size=4, unique=True))
    return _Corpora(lengths, packing, spec, skips)


def _choice(draw: st.DrawFn, amount: dict[str, Any]) -> Choice:
    is_some = "repeat" in amount or "choose" in amount
    return draw(st.sampled_from([Choice.FRESH, Choice.FIXED])) if is_some else Choice.FRESH


_BATCHES = st.integers(1, 9)
_WORLDS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), max_size=4)


@settings(max_examples=25)
@given(corpora=_corpora(), batch=_BATCHES, worlds=_WORLDS)
def test_mixed_runs_that_are_killed_and_rescaled_lose_nothing(
    corpora: _Corpora, batch: int, worlds: list[tuple[int, int]]
) -> None:
    """Three epochs by several worlds, each of which is killed after some batches, then by one rank.

    The rows are those of a run that nobody disturbs; each whole pass over a dataset holds all of
    its documents that are not skipped, whole; and each document is found where it was read.
    """
    _check_runs(corpora, batch, worlds)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=2000)
@given(corpora=_corpora(), batch=_BATCHES, worlds=_WORLDS)
def test_two_thousand_mixed_runs_lose_nothing(
    corpora: _Corpora, batch: int, worlds: list[tuple[int, int]]
) -> None:
    """The same, more often."""
    _check_runs(corpora, batch, worlds)


def _check_runs(corpora: _Corpora, batch: int, worlds: list[tuple[int, int]]) -> None:
    ends = np.cumsum([each.row_count for each in corpora.rows()])
    passes: dict[int, list[_Row]] = {}
    for epoch in range(3):
        undisturbed = _read_all(corpora, epoch, [], batch)
        disturbed = _read_all(corpora, epoch, worlds, batch)

        assert undisturbed == disturbed
        _check_found(corpora, epoch, undisturbed)
        for row_id, pieces in undisturbed:
            dataset = int(np.searchsorted(ends, row_id, side="right"))
            passes.setdefault(dataset, []).append((row_id, pieces))
    if corpora.spec.order.lanes == 1:
        for dataset, rows in passes.items():
            _check_passes(corpora, dataset, rows)


def _check_passes(corpora: _Corpora, dataset: int, rows: list[_Row]) -> None:
    row_count = corpora.rows()[dataset].row_count
    member = corpora.spec.datasets[dataset]
    if member.choice is Choice.FIXED and member.draws(row_count) < row_count:
        # The same rows for ever, of the same documents.
        assert len({str(row) for row in rows}) == member.draws(row_count)
        return
    first = int(corpora.first_ids[dataset])
    totals = np.concatenate(corpora.lengths[dataset]) + corpora.packing.marks
    wanted = {
        at: total
        for at, total in enumerate(totals.tolist(), first)
        if total and at not in corpora.skips
    }
    for start in range(0, len(rows) - row_count + 1, row_count):
        held: dict[int, int] = {}
        for piece in sorted(piece for _, own in rows[start : start + row_count] for piece in own):
            document, at, size = piece[:3]
            assert held.get(document, 0) == at
            held[document] = at + size
        assert held == wanted


def _check_found(corpora: _Corpora, epoch: int, rows: list[_Row]) -> None:
    documents = np.arange(0, int(corpora.first_ids[-1]), 7)
    found = corpora.finder().positions(epoch, documents)
    for document, positions in zip(documents.tolist(), found, strict=True):
        expected = [
            at for at, (_, own) in enumerate(rows) if document in {piece[0] for piece in own}
        ]
        assert positions.tolist() == expected


def _read_all(
    corpora: _Corpora, epoch: int, worlds: list[tuple[int, int]], batch: int
) -> list[_Row]:
    """Return the rows that a run reads, in their order.

    Args:
        corpora: The documents.
        epoch: The epoch.
        worlds: Ranks, at most as many as a batch has rows, and the batches until they are killed;
            one rank reads the rest.
        batch: Rows of a global batch.
    """
    found: list[_Row] = []
    for world, stop in [*worlds, (1, 1 << 40)]:
        size = min(world, batch)
        finder = corpora.finder()
        plan = EpochPlan(finder.sample_count, len(found), batch, EndMode.UNEVEN)
        indices, parts = range(min(stop, plan.batch_count)), []
        for rank in range(size if indices else 0):
            # Each rank is a process of its own.
            own = finder if size == 1 else corpora.finder()
            batches = plan.batches(indices, rank=rank, world_size=size)
            parts.append(
                [_rows_of(each) for each in own.find(epoch, list(map(ranges_of, batches)))]
            )
        for ranks in zip(*parts, strict=True):
            found += itertools.chain.from_iterable(ranks)
    return found


def _rows_of(found: BatchPlaces) -> list[_Row]:
    pieces = found.pieces
    assert pieces is not None
    numbers = np.column_stack([found.sample_ids, pieces.table]).tolist()
    edges = itertools.pairwise([0, *np.cumsum(pieces.counts).tolist()])
    return [
        (row_id, [tuple(piece) for piece in numbers[start:end]])
        for row_id, (start, end) in zip(found.item_ids.tolist(), edges, strict=True)
    ]
