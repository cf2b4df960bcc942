"""Find the packed rows of a mixture by their positions, and the documents in them.

Contract, in addition to that of `packed_rows`:

1. The rows of a dataset are packed again in each pass over it, not in each epoch of the mixture. So
   a pass that spans several epochs holds each of its documents once.
2. With a fixed choice, rows are always packed as in pass 0, because it gives the same documents in
   each epoch.
3. Ids of samples and blocks are those of all datasets, end to end. Rows show the ids that documents
   have in their own dataset.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.order import MixtureOrder, Skips
from headrace.order.packing import PackedGroup, PackedRows, Pieces, pass_packing_key
from headrace.server.plan.compiled import Located, Locator, take
from headrace.server.plan.find_samples import Found, OrderFinder, Range
from headrace.server.plan.packed_rows import blocks_of_groups, kept_pieces, located_rows
from headrace.server.plan.plain_finder import joined


class PackedMixtureFinder(OrderFinder):
    """Find the rows of several datasets, according to the contract above.

    Args:
        order: The order of the rows.
        rows: How the documents of each dataset are packed.
        locator: Finds the documents of all datasets.
        first_ids: ``(datasets + 1,) int64``: the first id of each dataset's documents, and the end.
        fingerprint: The fingerprint of the rows of all datasets.
        lane_bytes: See `Finder`.
        skips: The documents to skip.
    """

    def __init__(
        self,
        order: MixtureOrder,
        rows: Sequence[PackedRows],
        locator: Locator,
        *,
        first_ids: NDArray[np.int64],
        fingerprint: str,
        lane_bytes: int,
        skips: Skips | None = None,
    ) -> None:
        self._order = order
        self._rows = tuple(rows)
        self._locator = Located(locator)
        self._first_ids = first_ids
        self._skips = skips
        self.fingerprint = fingerprint
        self.lane_bytes = lane_bytes
        self.sample_count = order.sample_count

    def find(self, epoch: int, batches: Sequence[Sequence[Range]]) -> list[Found]:
        """Return the rows at the positions of each batch, which may be several ranges."""
        ids, passes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start, stop in joined(itertools.chain.from_iterable(batches)):
            own_ids, own_passes = self._order.with_passes(epoch, start, stop)
            ids.append(own_ids)
            passes.append(own_passes)
        row_ids = np.concatenate(ids)
        pieces = kept_pieces(self._pieces(row_ids, np.concatenate(passes)), self._skips)
        owners = np.searchsorted(self._first_ids, pieces.sample_ids, side="right") - 1
        return located_rows(
            row_ids,
            pieces,
            [sum(stop - first for first, stop in batch) for batch in batches],
            self._locator,
            documents=pieces.sample_ids - self._first_ids[owners],
        )

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
        owners = np.searchsorted(self._first_ids, sample_ids, side="right") - 1
        found = []
        for dataset in np.unique(owners).tolist():
            first_id = int(self._first_ids[dataset])
            own = sample_ids[owners == dataset] - first_id
            found.append(
                blocks_of_groups(self._rows[dataset], own, self._locator, first_id=first_id)
            )
        return np.unique(np.concatenate(found))

    def _pieces(self, row_ids: NDArray[np.int64], passes: NDArray[np.int64]) -> Pieces:
        """Return the pieces of rows of all datasets, in order."""
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
        dataset = int(np.searchsorted(self._first_ids, sample_id, side="right")) - 1
        rows, own = self._rows[dataset], sample_id - int(self._first_ids[dataset])
        is_skipped = self._skips is not None and self._skips.contains(np.array([sample_id]))[0]
        if is_skipped or not rows.row_count:
            return np.empty(0, np.int64)

        def rows_of_pass(number: int) -> NDArray[np.int64]:
            return rows.rows_of(self._key(dataset, number), own)

        return self._order.find_in_passes(epoch, dataset, rows_of_pass)

    def _key(self, dataset: int, number: int) -> int:
        return pass_packing_key(self._order.spec.order.seed, dataset, number)


def _by_pass(
    owners: NDArray[np.int64], passes: NDArray[np.int64]
) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    """Yield each pass of a dataset with its rows."""
    order = np.lexsort((passes, owners))
    sorted_owners, sorted_passes = owners[order], passes[order]
    is_other = (np.diff(sorted_owners) != 0) | (np.diff(sorted_passes) != 0)
    edges = (np.flatnonzero(is_other) + 1).tolist()
    for start, end in itertools.pairwise([0, *edges, len(order)]):
        if start < end:
            yield int(sorted_owners[start]), int(sorted_passes[start]), order[start:end]
