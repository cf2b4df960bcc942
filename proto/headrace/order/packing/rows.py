"""The rows of a dataset: from row ids of an epoch to pieces of documents, and back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.caches import BoundedCache
from headrace.errors import BadArgumentError
from headrace.order.basics.hash import Stream, derive
from headrace.order.basics.segments import starts_of
from headrace.order.packing.best_fit import Fit, best_fit
from headrace.order.packing.group import PackedGroup, pack_group
from headrace.order.packing.options import Packing
from headrace.order.packing.take import Take, take_pieces
from headrace.order.samples.pieces import Pieces
from headrace.order.samples.shard_table import ShardTable

_Array = NDArray[np.int64]

# About eighty groups of 16,384 documents, more than are shuffled together by default.
_PACKED_BYTES: Final = 32 << 20


_Groups = BoundedCache[tuple[int, int, int], PackedGroup]


class PackedRows:
    """The rows of a dataset; thread-safe.

    Args:
        packing: How documents are packed.
        document_counts: ``(groups,) int64``: documents of each group.
        row_counts: ``(groups,) int64``: rows of each group, from `group_row_count`.
        raw_bytes: ``(groups,) int64``: bytes of each group's documents in memory.
        lengths: Returns the lengths of a group's documents; may read from a store.
        fit: `best_fit`, or a faster equivalent.
        take: `take_pieces`, or a faster equivalent.

    Raises:
        BadArgumentError: The arrays do not have equal lengths, or a count is out of range.
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
        take: Take = take_pieces,
    ) -> None:
        if document_counts.shape != row_counts.shape:
            raise BadArgumentError(
                f"{len(document_counts)} groups have {len(row_counts)} row counts",
                field="row_counts",
            )
        self.packing: Final = packing
        # A group can only be read as a whole, so it is one block and one run of rows.
        self.table: Final = ShardTable(row_counts, raw_bytes, row_counts)
        self.row_count: Final = self.table.sample_count
        self.first_rows: Final = starts_of(row_counts)
        self.first_documents: Final = starts_of(document_counts)
        self.document_count: Final = int(self.first_documents[-1])
        self._lengths = lengths
        self._fit = fit
        self._take = take
        self._packed = _Groups(_PACKED_BYTES)
        self._number = 0

    def pieces(self, key: int, row_ids: _Array) -> Pieces:
        """Return the pieces of rows, in the order of the rows.

        Args:
            key: The key of the epoch, from `packing_key`.
            row_ids: ``(n,) int64``, each in [0, `row_count`).
        """
        return self._take(*self.places(key, row_ids))

    def places(self, key: int, row_ids: _Array) -> tuple[list[PackedGroup], _Array, _Array, _Array]:
        """Return where rows lie, as the arguments of `take_pieces`; takes what `pieces` does."""
        groups = np.searchsorted(self.first_rows, row_ids, side="right") - 1
        # There are few, so a set is three times as fast as sorting all.
        distinct = sorted(set(groups.tolist()))
        which = np.searchsorted(distinct, groups)
        packed = [self.group(key, group) for group in distinct]
        rows = row_ids - self.first_rows[groups]
        return packed, which, rows, self.first_documents[groups]

    def rows_of(self, key: int, sample_id: int) -> _Array:
        """Return the ids of the rows that hold a document or a part of it, rising."""
        group = int(np.searchsorted(self.first_documents, sample_id, side="right")) - 1
        found = self.group(key, group)
        own = np.flatnonzero(found.pieces[:, 0] == sample_id - int(self.first_documents[group]))
        rows = np.searchsorted(found.starts, own, side="right") - 1
        distinct: _Array = np.unique(rows) + self.first_rows[group]
        return distinct

    def group(self, key: int, group: int) -> PackedGroup:
        """Return a group as it is packed in an epoch."""
        # Read outside the cache's lock, because it may take long.
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

        return self._packed.get_once((self._number, key, group), make)


def shared_groups(several: Sequence[PackedRows]) -> list[PackedRows]:
    """Return the rows of several datasets, with one cache of packed groups for all of them."""
    packed, views = _Groups(_PACKED_BYTES), []
    for number, rows in enumerate(several):
        view = copy.copy(rows)
        view._packed, view._number = packed, number  # noqa: SLF001 - its own copy
        views.append(view)
    return views


def packing_key(seed: int, epoch: int) -> int:
    """Return the key of an epoch's packing."""
    return derive(0, seed, epoch, Stream.PACKING)


def pass_packing_key(seed: int, dataset: int, number: int) -> int:
    """Return the key of the packing of one pass over a dataset of a mixture."""
    return derive(0, seed, Stream.DATASET, dataset, number, Stream.PACKING)
