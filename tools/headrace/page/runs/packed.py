"""Find the documents in packed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.order import Order, OrderSpec, batch_sample_ids
from headrace.order.packing import PackedRows, Packing, packing_key
from headrace.page.runs.orders import Deal, plan_of
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
) -> tuple[list[tuple[int, Sequence[Piece]]], int]:
    """Return the first `MAX_ROWS` rows of a batch, each with its part of the batch.

    Returns:
        The part and the documents of each row, as ranks get them, and the batches of the epoch.

    Raises:
        PositionPastEndError: The epoch has no such batch.
        HeadraceError: The stored lengths or counts cannot be read.
    """
    pointer = read_packing(store, dataset.fingerprint)
    assert pointer is not None
    table = next(each for each in pointer.rows if each.options.length == length)
    packed = _packed(store, StoredLengths(store, pointer), table)
    order = Order(spec, packed.table)
    plan, parts = plan_of(order, deal), range(deal.world_size)
    dealt = [plan.batch(deal.step, rank=part, world_size=deal.world_size) for part in parts]
    rows = [batch_sample_ids(order, deal.epoch, batch) for batch in dealt]
    chosen = np.concatenate(rows)[:MAX_ROWS]
    owners = np.repeat(parts, [len(each) for each in rows]).tolist()
    pieces = packed.pieces(packing_key(spec.seed, deal.epoch), chosen)
    table, ends = pieces.table.tolist(), np.cumsum(pieces.counts).tolist()
    every = [
        Piece(int(sample), int(place), int(count), bool(count < whole))
        for sample, (_, count, whole, place) in zip(pieces.sample_ids.tolist(), table, strict=True)
    ]
    found = [every[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return list(zip(owners, found, strict=False)), plan.batch_count


def _packed(store: Store, lengths: StoredLengths, table: RowTable) -> PackedRows:
    groups, options = lengths.groups, table.options
    return PackedRows(
        Packing(options.length, options.cut, options.marks),
        document_counts=groups["sample_count"].astype(np.int64),
        row_counts=read_row_counts(store, table, group_count=len(groups)),
        raw_bytes=groups["raw_bytes"].astype(np.int64),
        lengths=lengths.of_group,
    )
