"""Find the documents in packed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.order import Order, OrderSpec
from headrace.order.packing import PackedRows, Packing, packing_key
from headrace.page.runs.orders import Deal
from headrace.storage import (
    OpenDataset,
    RowTable,
    Store,
    StoredLengths,
    read_packing,
    read_row_counts,
)

MAX_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """A document in a row, or a part of one.

    Attributes:
        sample_id: The id of the document.
        offset: The offset in the row, in elements.
        length: The number of elements in the row.
        is_part: Whether the rest of the document is in another row.
    """

    sample_id: int
    offset: int
    length: int
    is_part: bool


def row_lengths(store: Store, fingerprint: str) -> list[int]:
    """Return the row lengths for which a version of a dataset is indexed."""
    pointer = read_packing(store, fingerprint)
    return [] if pointer is None else sorted(table.options.length for table in pointer.rows)


def rows_of_batch(
    store: Store, dataset: OpenDataset, *, length: int, spec: OrderSpec, deal: Deal
) -> list[Sequence[Piece]]:
    """Return the documents of the first `MAX_ROWS` rows of a batch.

    Raises:
        HeadraceError: The stored lengths or counts cannot be read.
    """
    pointer = read_packing(store, dataset.fingerprint)
    assert pointer is not None
    table = next(each for each in pointer.rows if each.options.length == length)
    packed = _packed(store, StoredLengths(store, pointer), table)
    order = Order(spec, packed.table)
    first = deal.step * deal.global_batch_size
    last = min(first + deal.global_batch_size, first + MAX_ROWS, order.sample_count)
    chosen = order.sample_ids(deal.epoch, first, last)
    pieces = packed.pieces(packing_key(spec.seed, deal.epoch), chosen)
    table, ends = pieces.table.tolist(), np.cumsum(pieces.counts).tolist()
    every = [
        Piece(int(sample), int(place), int(count), bool(count < whole))
        for sample, (_, count, whole, place) in zip(pieces.sample_ids.tolist(), table, strict=True)
    ]
    return [every[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _packed(store: Store, lengths: StoredLengths, table: RowTable) -> PackedRows:
    groups, options = lengths.groups, table.options
    return PackedRows(
        Packing(options.length, options.cut, options.marks),
        document_counts=groups["sample_count"].astype(np.int64),
        row_counts=read_row_counts(store, table, group_count=len(groups)),
        raw_bytes=groups["raw_bytes"].astype(np.int64),
        lengths=lengths.of_group,
    )
