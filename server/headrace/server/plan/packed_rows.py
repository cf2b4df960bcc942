"""Find packed rows by their positions, and then the documents in them.

Contract:

1. Positions are those of rows, in the order of a table whose shards are groups of documents.
2. The result for a batch is its documents, one per piece, row after row; a document with parts in
   two rows of a batch occurs twice.
3. A skipped document is left out without other changes: its place in its row stays empty.
4. Lengths of documents may be read from a store while rows are searched; an error there ends the
   stream between two batches.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headrace.order import DealSpec, Order, Skips
from headrace.order.packing import PackedRows, Pieces, packing_key
from headrace.server.plan.compiled import Located, Locator, distinct_each
from headrace.server.plan.find_samples import Found, FoundTogether, OrderFinder, Range
from headrace.server.plan.plain_finder import joined, lane_bytes


@dataclass(frozen=True, slots=True, eq=False)
class RowsTogether(FoundTogether):
    """The rows of several batches found together, one batch after the other.

    Attributes:
        row_ids: ``(rows,) int64``.
        starts: ``(rows + 1,) int64``: the first piece of each row, and the end of the last row.
            Pieces take the place of samples.
        table: ``(pieces, 4) int64``: see `headrace.order.packing.Pieces`.
        documents: ``(pieces,) int64``: the ids that rows show; in a mixture, those in its datasets.
    """

    row_ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    table: NDArray[np.int64]
    documents: NDArray[np.int64]

    def picked(self, whole: Sequence[Found], owns: Sequence[NDArray[np.int64]]) -> list[Found]:
        """Return a selection of the rows of each of several batches; see `FoundTogether`."""
        batches = cast("Sequence[FoundRows]", whole)
        pieces = []
        for found, own in zip(batches, owns, strict=True):
            is_own = np.zeros(found.counts.size, np.bool_)
            is_own[own] = True
            pieces.append(np.flatnonzero(np.repeat(is_own, found.counts)))
        counts = [found.counts[own] for found, own in zip(batches, owns, strict=True)]
        starts = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        ends = list(accumulate(own.size for own in owns))
        pairs = list(zip(batches, pieces, strict=True))
        blocks = np.concatenate([found.blocks[own] for found, own in pairs])
        touched = distinct_each(blocks, starts[ends].tolist())
        return RowsTogether(
            np.concatenate([found.sample_ids[own] for found, own in pairs]),
            blocks,
            np.concatenate([found.offsets[own] for found, own in pairs]),
            np.concatenate([*touched, blocks[:0]]),
            np.concatenate([found.item_ids[own] for found, own in zip(batches, owns, strict=True)]),
            starts,
            np.concatenate([found.table[own] for found, own in pairs]),
            np.concatenate([found.places.sample_ids[own] for found, own in pairs]),
            alive=tuple(found.together.alive for found in whole),
        ).cut(ends, accumulate(each.size for each in touched))

    def places_before(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many pieces belong to the first rows."""
        return self.starts[items]

    def cut(self, ends: Iterable[int], touched_ends: Iterable[int]) -> list[Found]:
        """Return each batch.

        Args:
            ends: The end of each batch's rows.
            touched_ends: The end of each batch's blocks.
        """
        edges = pairwise([0, *ends])
        touched_edges = pairwise([0, *touched_ends])
        return [
            FoundRows(self, *edge, *touched)
            for edge, touched in zip(edges, touched_edges, strict=True)
        ]


class FoundRows(Found):
    """The rows of one batch, or of several that follow one another.

    `start` and `end` count rows; all other attributes of `Found` describe their pieces.
    """

    __slots__ = ()

    @property
    def rows(self) -> RowsTogether:
        """All rows that were found together."""
        return cast("RowsTogether", self.together)

    @property
    def pieces(self) -> slice:
        """The pieces of these rows."""
        starts = self.rows.starts
        return slice(int(starts[self.start]), int(starts[self.end]))

    @property
    def item_ids(self) -> NDArray[np.int64]:
        """Return the rows, ``(rows,) int64``."""
        return self.rows.row_ids[self.start : self.end]

    @property
    def sample_ids(self) -> NDArray[np.int64]:
        """Return the document of each piece."""
        return self.together.sample_ids[self.pieces]

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Return the block of each piece."""
        return self.together.blocks[self.pieces]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Return the place of each piece's document in its block."""
        return self.together.offsets[self.pieces]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return how many pieces each row has."""
        return np.diff(self.rows.starts[self.start : self.end + 1])

    @property
    def table(self) -> NDArray[np.int64]:
        """Return where each piece lies."""
        return self.rows.table[self.pieces]

    @property
    def places(self) -> Pieces:
        """Return the pieces as rows show them."""
        return Pieces(self.counts, self.rows.documents[self.pieces], self.table)

    def up_to(self, last: Found) -> FoundRows:
        """Return the rows of this batch and of those that follow, up to another."""
        return FoundRows(self.together, self.start, last.end, self.touched_start, last.touched_end)


class PackedFinder(OrderFinder):
    """Find rows of documents, according to the contract above.

    Args:
        order: The order of the rows.
        rows: How documents are packed.
        locator: Finds the documents.
        fingerprint: The fingerprint of the rows.
        skips: The documents to skip.
    """

    def __init__(
        self,
        order: Order,
        rows: PackedRows,
        locator: Locator,
        *,
        fingerprint: str,
        skips: Skips | None = None,
    ) -> None:
        self._order = order
        self._rows = rows
        self._locator = Located(locator)
        self._skips = skips
        self.fingerprint = fingerprint
        self.sample_count = order.sample_count
        raw_bytes = int(rows.table.raw_bytes.sum())
        self.lane_bytes = lane_bytes(
            order.spec, order.memory_samples, order.sample_count, raw_bytes
        )

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[Found]:
        """Return the rows at the positions of each batch, which may be several ranges."""
        ids = [np.empty(0, np.int64)]
        ranges = joined(chain.from_iterable(batches))
        ids += [self._order.sample_ids(epoch, *each) for each in ranges]
        row_ids = np.concatenate(ids)
        key = packing_key(self._order.spec.seed, epoch)
        pieces = kept_pieces(self._rows.pieces(key, row_ids), self._skips)
        counts = [sum(stop - first for first, stop in batch) for batch in batches]
        return located_rows(row_ids, pieces, counts, self._locator)

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return that nothing replaces a skipped document."""
        del epoch
        return np.zeros(stop - start, np.bool_)

    def positions(self, epoch: int, sample_ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return all positions in an epoch of rows with given documents."""
        key = packing_key(self._order.spec.seed, epoch)
        is_skipped = np.zeros(sample_ids.size, np.bool_)
        if self._skips is not None:
            is_skipped = self._skips.contains(sample_ids)
        found = []
        for sample_id, is_out in zip(sample_ids.tolist(), is_skipped.tolist(), strict=True):
            rows = self._rows.rows_of(key, sample_id)
            found.append(np.sort(self._order.positions(epoch, rows[:0] if is_out else rows)))
        return found

    def blocks_of_runs(self, epoch: int, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks of the groups of documents, ascending."""
        del epoch
        return np.unique(blocks_of_groups(self._rows, sample_ids, self._locator))


def located_rows(
    row_ids: NDArray[np.int64],
    pieces: Pieces,
    counts: Sequence[int],
    locator: Located,
    *,
    documents: NDArray[np.int64] | None = None,
) -> list[Found]:
    """Find the blocks of the documents of rows.

    Args:
        row_ids: The row ids of all batches, one after the other.
        pieces: The pieces of these rows.
        counts: Rows of each batch.
        locator: Finds the documents.
        documents: The ids that rows show; None for those of the pieces.
    """
    starts = np.zeros(row_ids.size + 1, np.int64)
    np.cumsum(pieces.counts, out=starts[1:])
    blocks, offsets = locator.locate(pieces.sample_ids)
    ends = list(accumulate(counts))
    touched = distinct_each(blocks, starts[np.array(ends, np.int64)].tolist())
    together = RowsTogether(
        pieces.sample_ids,
        blocks,
        offsets,
        np.concatenate([*touched, blocks[:0]]),
        row_ids,
        starts,
        pieces.table,
        pieces.sample_ids if documents is None else documents,
    )
    return together.cut(ends, accumulate(own.size for own in touched))


def kept_pieces(pieces: Pieces, skips: Skips | None) -> Pieces:
    """Return the pieces of documents that are not skipped, in their places."""
    if skips is None or not len(skips):
        return pieces
    is_kept = ~skips.contains(pieces.sample_ids)
    rows = np.repeat(np.arange(pieces.counts.size), pieces.counts)
    counts = np.bincount(rows[is_kept], minlength=pieces.counts.size)
    return Pieces(counts, pieces.sample_ids[is_kept], pieces.table[is_kept])


def blocks_of_groups(
    rows: PackedRows, sample_ids: NDArray[np.int64], locator: Locator, *, first_id: int = 0
) -> NDArray[np.int64]:
    """Return all blocks of the groups of documents; blocks may repeat.

    Args:
        rows: How the documents are packed.
        sample_ids: The documents, at least one.
        locator: Finds the documents.
        first_id: The locator's id of the first document.
    """
    firsts = rows.first_documents
    groups = np.unique(np.searchsorted(firsts, sample_ids, side="right") - 1)
    starts, _ = locator.locate(firsts[groups] + first_id)
    lasts, _ = locator.locate(firsts[groups + 1] - 1 + first_id)
    ranges = [np.arange(start, last + 1) for start, last in zip(starts, lasts, strict=True)]
    return np.concatenate(ranges)


def row_costs(found: Found, deal: DealSpec) -> NDArray[np.float64]:
    """Return the costs of rows of documents: by default the squares of documents' lengths."""
    rows = cast("FoundRows", found)
    sizes = rows.table[:, 1].astype(np.float64)
    numbers = np.repeat(np.arange(rows.counts.size), rows.counts)
    squares = deal.square_cost if deal.length_cost or deal.square_cost else 1.0
    costs = deal.length_cost * sizes + squares * (sizes * sizes)
    # Without pieces, the sums are integers.
    return np.bincount(numbers, costs, minlength=rows.counts.size).astype(np.float64)
