"""Find packed rows by their positions, and the documents in them.

Contract:

1. Positions are those of rows, in the order of tables whose shards are groups of documents.
2. The result for a batch is its documents, one per piece, row after row; a document with parts in
   two rows of a batch occurs twice.
3. The rows of one dataset are packed again in each epoch. In a mixture they are packed again in
   each pass over a dataset, not in each epoch of the mixture, so a pass that spans several epochs
   holds each of its documents once. With a fixed choice they are always packed as in pass 0.
4. Ids of samples and blocks are those of all datasets, end to end. Rows show the ids that documents
   have in their own dataset.
5. A skipped document is left out without other changes: its place in its row stays empty.
6. Lengths of documents may be read from a store while rows are searched; an error there ends the
   stream between two batches.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order import Order, Pieces, Skips
from headrace.order.packing import PackedGroup, PackedRows, Placement
from headrace.server.kernels.loader import LOOPS
from headrace.server.plan.compiled import Locator, distinct_each, search
from headrace.server.plan.find_samples import BatchPlaces, Items, OrderFinder, Range, SamplePlaces
from headrace.server.plan.plain_finder import joined


class RowOrder(Protocol):
    """The parts of an order of rows that a finder needs."""

    @property
    def first_ids(self) -> NDArray[np.int64]:
        """Return the id of the first row of each dataset, and the end."""

    @property
    def sample_count(self) -> int:
        """Return the number of rows in an epoch."""

    def with_passes(
        self, epoch: int, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows at positions, and the pass over its dataset that each belongs to."""

    def find_in_passes(
        self, epoch: int, dataset: int, samples: Callable[[int], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Return the positions of rows of a dataset, which may differ from pass to pass."""


class LoneRows:
    """The order of the rows of one dataset, over which an epoch is one pass."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.sample_count = order.sample_count
        self.first_ids = np.array([0, order.sample_count])

    def with_passes(
        self, epoch: int, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows at positions, and the epoch for each."""
        return self._order.sample_ids(epoch, start, stop), np.full(stop - start, epoch)

    def find_in_passes(
        self, epoch: int, dataset: int, samples: Callable[[int], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Return the positions of rows."""
        del dataset
        return np.sort(self._order.positions(epoch, samples(epoch)))


class PackedFinder(OrderFinder):
    """Find rows of documents, according to the contract above.

    Args:
        order: The order of the rows.
        rows: How the documents of each dataset are packed.
        locator: Finds the documents of all datasets.
        first_ids: ``(datasets + 1,) int64``: the first id of each dataset's documents, and the end.
        key: Returns the key of packing for a dataset and a pass over it.
        fingerprint: The fingerprint of the rows of all datasets.
        lane_bytes: See `Finder`.
        skips: The documents to skip.
    """

    def __init__(
        self,
        order: RowOrder,
        rows: Sequence[PackedRows],
        locator: Locator,
        *,
        first_ids: NDArray[np.int64],
        key: Callable[[int, int], int],
        fingerprint: str,
        lane_bytes: int,
        skips: Skips | None = None,
    ) -> None:
        self._order = order
        self._rows = tuple(rows)
        self._locate = partial(locator.locate, search=search)
        self._first_ids = first_ids
        self._key = key
        self._skips = skips
        self.fingerprint = fingerprint
        self.lane_bytes = lane_bytes
        self.sample_count = order.sample_count

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[BatchPlaces]:
        """Return the rows at the positions of each batch, which may be several ranges."""
        ids, passes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start, stop in joined(chain.from_iterable(batches)):
            own_ids, own_passes = self._order.with_passes(epoch, start, stop)
            ids.append(own_ids)
            passes.append(own_passes)
        row_ids = np.concatenate(ids)
        pieces = kept_pieces(self._pieces(row_ids, np.concatenate(passes)), self._skips)
        documents = pieces.sample_ids
        blocks, offsets = self._locate(documents)
        starts = np.zeros(row_ids.size + 1, np.int64)
        np.cumsum(pieces.counts, out=starts[1:])
        ends = list(accumulate(sum(stop - first for first, stop in batch) for batch in batches))
        touched = distinct_each(blocks, starts[ends].tolist())
        shown = documents - self._first_ids[self._owners(documents)]
        together = SamplePlaces(
            documents,
            blocks,
            offsets,
            np.concatenate([*touched, blocks[:0]]),
            Items(row_ids, starts, pieces.table, shown),
        )
        return together.cut(ends, accumulate(own.size for own in touched))

    @property
    def has_substitutes(self) -> bool:
        """Whether samples replace others: nothing replaces a skipped document."""
        return False

    def skipped(self, epoch: int, start: int, stop: int) -> NDArray[np.bool_]:
        """Return that nothing replaces a skipped document."""
        del epoch
        return np.zeros(stop - start, np.bool_)

    def positions(self, epoch: int, sample_ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return all positions in an epoch of rows with given documents."""
        return [self._positions(epoch, sample_id) for sample_id in sample_ids.tolist()]

    def blocks_of_runs(self, epoch: int, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks of the groups of documents, ascending."""
        del epoch
        owners = self._owners(sample_ids)
        found = []
        for dataset in np.unique(owners).tolist():
            firsts, first_id = self._rows[dataset].first_documents, self._first_ids[dataset]
            own = sample_ids[owners == dataset] - first_id
            groups = np.unique(np.searchsorted(firsts, own, side="right") - 1)
            starts, _ = self._locate(firsts[groups] + first_id)
            lasts, _ = self._locate(firsts[groups + 1] - 1 + first_id)
            found += [np.arange(start, last + 1) for start, last in zip(starts, lasts, strict=True)]
        return np.unique(np.concatenate(found))

    def _owners(self, sample_ids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the dataset of each document."""
        if len(self._rows) == 1:
            return np.zeros(sample_ids.size, np.intp)
        owners: NDArray[np.intp] = np.searchsorted(self._first_ids, sample_ids, side="right") - 1
        return owners

    def _pieces(self, row_ids: NDArray[np.int64], passes: NDArray[np.int64]) -> Pieces:
        """Return the pieces of rows of all datasets, in order."""
        if len(self._rows) == 1 and passes.size and passes.min() == passes.max():
            # In a third of the time.
            return take(*self._rows[0].places(self._key(0, int(passes[0])), row_ids))
        owners = np.searchsorted(self._order.first_ids, row_ids, side="right") - 1
        own_ids = row_ids - self._order.first_ids[owners]
        groups: list[PackedGroup] = []
        which, places, firsts = np.empty((3, row_ids.size), np.int64)
        for dataset, number, own in _by_pass(owners, passes):
            found = self._rows[dataset].places(self._key(dataset, number), own_ids[own])
            which[own] = found[1] + len(groups)
            places[own], firsts[own] = found[2], found[3] + self._first_ids[dataset]
            groups += found[0]
        return take(groups, which, places, firsts)

    def _positions(self, epoch: int, sample_id: int) -> NDArray[np.int64]:
        (dataset,) = self._owners(np.array([sample_id])).tolist()
        rows, own = self._rows[dataset], sample_id - int(self._first_ids[dataset])
        is_skipped = self._skips is not None and self._skips.contains(np.array([sample_id]))[0]
        if is_skipped or not rows.row_count:
            return np.empty(0, np.int64)
        return self._order.find_in_passes(
            epoch, dataset, lambda number: rows.rows_of(self._key(dataset, number), own)
        )


def _by_pass(
    owners: NDArray[np.int64], passes: NDArray[np.int64]
) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    """Yield each pass of a dataset with its rows."""
    order = np.lexsort((passes, owners))
    sorted_owners, sorted_passes = owners[order], passes[order]
    is_other = (np.diff(sorted_owners) != 0) | (np.diff(sorted_passes) != 0)
    edges = (np.flatnonzero(is_other) + 1).tolist()
    for start, end in pairwise([0, *edges, len(order)]):
        if start < end:
            yield int(sorted_owners[start]), int(sorted_passes[start]), order[start:end]


def fit(
    documents: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    limits: tuple[int, int, int],
) -> Placement | None:
    """Compute the same as `headrace.order.packing.best_fit`."""
    out = np.empty((documents.size + limits[2], 4), np.int64)
    count, rows = LOOPS.best_fit(documents, starts, sizes, *limits, out)
    return None if count < 0 else Placement(out[:count], rows)


def take(
    groups: Sequence[PackedGroup],
    which: NDArray[np.int64],
    rows: NDArray[np.int64],
    firsts: NDArray[np.int64],
) -> Pieces:
    """Compute the same as `headrace.order.packing.take_pieces`."""
    tables = np.array([each.memory for each in groups], np.int64).reshape(-1, 4)
    given = (tables, which, rows)
    counts = np.empty(rows.size, np.int64)
    count = LOOPS.count_pieces(*given, counts)
    sample_ids, table = np.empty(count, np.int64), np.empty((count, 4), np.int64)
    LOOPS.take_pieces(*given, firsts, sample_ids, table)
    return Pieces(counts, sample_ids, table)


def kept_pieces(pieces: Pieces, skips: Skips | None) -> Pieces:
    """Return the pieces of documents that are not skipped, in their places."""
    if skips is None or not len(skips):
        return pieces
    is_kept = ~skips.contains(pieces.sample_ids)
    rows = np.repeat(np.arange(pieces.counts.size), pieces.counts)
    counts = np.bincount(rows[is_kept], minlength=pieces.counts.size)
    return Pieces(counts, pieces.sample_ids[is_kept], pieces.table[is_kept])
