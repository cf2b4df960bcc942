"""The rows of a dataset: from row ids of an epoch to pieces of documents, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order._cache import BoundedCache
from headrace.order._hash import Stream, derive
from headrace.order._table import ShardTable
from headrace.order.packing.best_fit import Fit, best_fit
from headrace.order.packing.group import PackedGroup, pack_group
from headrace.order.packing.options import Packing

_Array = NDArray[np.int64]

# Some eighty groups of 16,384 documents, more than are shuffled together by default.
_PACKED_BYTES: Final = 32 << 20


_NO_PIECES: Final = np.empty((0, 5), np.int32)


class Pieces(NamedTuple):
    """The documents of some rows, row after row.

    Attributes:
        counts: ``(rows,) int64``: pieces of each row.
        sample_ids: ``(pieces,) int64``: the document of each.
        table: ``(pieces, 4) int64``: where the piece begins in its document, its elements, the
            document's elements, marks included, and where the piece lies in its row.
    """

    counts: _Array
    sample_ids: _Array
    table: _Array


class PackedRows:
    """The rows of a dataset; safe to call from several threads.

    Args:
        packing: How documents are packed.
        document_counts: ``(groups,) int64``: documents of each group.
        row_counts: ``(groups,) int64``: rows of each, as `group_row_count` returned them.
        raw_bytes: ``(groups,) int64``: bytes of its documents in memory.
        lengths: Returns the lengths of a group's documents; may read them from somewhere.
        fit: Does what `best_fit` does.

    Raises:
        BadArgumentError: The counts are not of as many groups, or one is out of range.
    """

    def __init__(
        self,
        packing: Packing,
        *,
        document_counts: _Array,
        row_counts: _Array,
        raw_bytes: _Array,
        lengths: Callable[[int], _Array],
        fit: Fit = best_fit,
    ) -> None:
        if document_counts.shape != row_counts.shape:
            raise BadArgumentError(
                f"{len(document_counts)} groups have {len(row_counts)} row counts",
                field="row_counts",
            )
        self.packing: Final = packing
        # A group is read whole whatever is wanted of it, so it is one block, and a run, of rows.
        self.table: Final = ShardTable(row_counts, raw_bytes, row_counts)
        self.row_count: Final = self.table.sample_count
        self.first_rows: Final = _starts(row_counts)
        self.first_documents: Final = _starts(document_counts)
        self.document_count: Final = int(self.first_documents[-1])
        self._lengths = lengths
        self._fit = fit
        self._packed: BoundedCache[tuple[int, int], PackedGroup] = BoundedCache(_PACKED_BYTES)

    def pieces(self, key: int, row_ids: _Array) -> Pieces:
        """Return the pieces of some rows, in their order.

        Args:
            key: Of the epoch, from `packing_key`.
            row_ids: ``(n,) int64``, each in [0, `row_count`).
        """
        groups = np.searchsorted(self.first_rows, row_ids, side="right") - 1
        own = row_ids - self.first_rows[groups]
        packed = {
            group: (found.pieces, found.bounds)
            for group in np.unique(groups).tolist()
            for found in (self.group(key, group),)
        }
        parts = [_NO_PIECES]
        sizes = []
        for group, row in zip(groups.tolist(), own.tolist(), strict=True):
            pieces, bounds = packed[group]
            first, stop = bounds[row], bounds[row + 1]
            sizes.append(stop - first)
            parts.append(pieces[first:stop])
        table = np.concatenate(parts)
        counts = np.array(sizes, np.int64)
        firsts = np.repeat(self.first_documents[groups], counts)
        return Pieces(counts, table[:, 0] + firsts, table[:, 1:].astype(np.int64))

    def rows_of(self, key: int, sample_id: int) -> _Array:
        """Return the ids of the rows that hold a document, or parts of it, rising."""
        group = int(np.searchsorted(self.first_documents, sample_id, side="right")) - 1
        found = self.group(key, group)
        own = np.flatnonzero(found.pieces[:, 0] == sample_id - int(self.first_documents[group]))
        rows = np.searchsorted(found.starts, own, side="right") - 1
        distinct: _Array = np.unique(rows) + self.first_rows[group]
        return distinct

    def group(self, key: int, group: int) -> PackedGroup:
        """Return a group as it is packed in an epoch."""
        # Read outside of the cache's lock, for that may take long.
        lengths = self._lengths(group)

        def make() -> PackedGroup:
            return pack_group(
                lengths,
                self.packing,
                first_id=int(self.first_documents[group]),
                key=key,
                row_count=int(self.table.sample_counts[group]),
                fit=self._fit,
            )

        return self._packed.get((key, group), make)


def packing_key(seed: int, epoch: int) -> int:
    """Return the key that an epoch's packing is drawn from."""
    return derive(0, seed, epoch, Stream.PACKING)


def _starts(counts: _Array) -> _Array:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
