"""The columns of one batch as separate values, so that stages can change them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.payload import ALIGNMENT, PayloadLayout, layout_of
from headrace.server.batch.batch_writer import Read
from headrace.server.batch.payload_out import payload_out
from headrace.server.batch.row_pool import Waits, Workers
from headrace.server.batch.targets import Finished, Places, Target
from headrace.server.layout.wire_columns import WireColumn, refuse_large
from headrace.v1 import shard_service_pb2 as pb

Claim: TypeAlias = Callable[[int], None]
"""Claims this many bytes in all before they are allocated; see `headrace.server.shares`."""

MakeRows: TypeAlias = Callable[[Sequence[NDArray[np.uint8]], Workers], Waits[None]]
"""Writes rows into the given memory, with these threads."""


@dataclass(frozen=True, slots=True, eq=False)
class Later:
    """How the values of a column are made when they have their place.

    Attributes:
        make: Writes them.
        beside_bytes: The memory that this takes besides the values.
    """

    make: MakeRows
    beside_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """One column of one batch.

    Attributes:
        column: The column's description.
        values: ``(rows, *item_shape)`` for a tensor; the flat elements for other kinds.
        offsets: ``(rows + 1,) int64`` in elements, the first 0; None for a tensor.
        valid: ``(rows,) uint8`` if the column is nullable, else None.
        later: How `values` are made, which are all zero until then; None if they are made.
    """

    column: WireColumn
    values: NDArray[np.generic]
    offsets: NDArray[np.int64] | None = None
    valid: NDArray[np.uint8] | None = None
    later: Later | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all parts together."""
        return sum(part.nbytes for part in _parts(self))


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The companions of the samples of a batch, from the same global batch.

    Attributes:
        key: The key of random choices for the global batch.
        rows: ``(samples,) int64``: the row of the companion of each of the batch's own samples.
            Rows after the batch's own are only companions.
    """

    key: int
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The columns of one batch on their way through the stages.

    Attributes:
        columns: The columns by name, in the order in which they are sent.
        row_count: Rows of each column.
        keys: ``(rows,) uint64``: the key of random choices for each sample.
        group: The companions of its samples; None if no stage needs any.
        found: The samples that were gathered, as they were planned.
        damaged: Rows that a stage cannot use and that are to be replaced; if there are any, the
            batch is discarded.
    """

    columns: dict[str, Values]
    row_count: int
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    group: Group | None = None
    found: Read | None = None
    damaged: Sequence[int] = ()


def split_payload(
    columns: Sequence[WireColumn],
    payload: memoryview,
    buffer_bytes: Sequence[int],
    *,
    row_count: int,
) -> dict[str, Values]:
    """Return the columns of a payload as views, which are valid as long as the payload is."""
    buffers = _buffers(payload, buffer_bytes)
    found = {}
    for column in columns:
        valid = next(buffers) if column.nullable else None
        if column.is_tensor:
            values = next(buffers).view(column.dtype).reshape(row_count, *column.item_shape)
            found[column.name] = Values(column, values, None, valid)
        else:
            offsets = next(buffers).view(np.int64)
            found[column.name] = Values(column, next(buffers).view(column.dtype), offsets, valid)
    return found


def made_bytes(batch: Batch, payload: memoryview) -> int:
    """Return the bytes of the columns that lie outside the gathered payload."""
    start = np.frombuffer(payload, np.uint8).ctypes.data
    return sum(
        part.nbytes
        for values in batch.columns.values()
        for part in _parts(values)
        if not start <= part.ctypes.data < start + len(payload)
        and (values.later is None or part is not values.values)
    )


def unmade(column: WireColumn, row_count: int, later: Later) -> Values:
    """Return a tensor column that takes no memory before it is made; nothing in it is null."""
    nothing = np.broadcast_to(np.zeros((), column.dtype), (row_count, *column.item_shape))
    return Values(column, nothing, later=later)


def make_now(values: Values, workers: Workers) -> Waits[Values]:
    """Return a column after making its values, if they are not made yet."""
    if values.later is None:
        return values
    made = np.empty(values.values.shape, values.values.dtype)
    yield from values.later.make(rows_of(made), workers)
    return replace(values, values=made, later=None)


def rows_of(made: NDArray[np.generic]) -> list[NDArray[np.uint8]]:
    """Return the bytes of each row of a contiguous array."""
    row_bytes = math.prod(made.shape[1:]) * made.dtype.itemsize
    return list(made.reshape(-1).view(np.uint8).reshape(len(made), row_bytes))


@dataclass(frozen=True, slots=True, eq=False)
class PlacedBatch:
    """A batch with the place where it is to be written.

    Attributes:
        batch: The columns.
        layout: The layout of the payload.
        places: The group of places that the target belongs to.
        target: Where to write it.
    """

    batch: Batch
    layout: PayloadLayout
    places: Places
    target: Target


def place_batch(
    batch: Batch, header: pb.BatchHeader, *, max_batch_bytes: int, places: Places, claim: Claim
) -> PlacedBatch:
    """Lay out a batch and take a place for it.

    Args:
        batch: The columns.
        header: The header; the fields about the payload are filled in.
        max_batch_bytes: The limit of the payload's size.
        places: Gives the place.
        claim: Claims the payload's memory before the place is taken.

    Raises:
        BadArgumentError: The payload would exceed the limit.
    """
    columns = [each.column for each in batch.columns.values()]
    ragged = [each.values.nbytes for each in batch.columns.values() if each.offsets is not None]
    layout = layout_of(columns, batch.row_count, ragged)
    refuse_large(layout.size, max_batch_bytes)
    claim(layout.size)
    header.buffer_bytes.extend(layout.lengths)
    header.payload_bytes = layout.size
    places.add(header, layout.lengths)
    (target,) = places.find()
    return PlacedBatch(batch, layout, places, target)


def write_batch(placed: PlacedBatch, workers: Workers) -> Waits[list[Finished]]:
    """Write a batch into its place, and return its messages.

    Args:
        placed: The batch and its place.
        workers: The threads that make columns which are not made yet.
    """
    out, starts = payload_out(placed.target), iter(placed.layout.starts)
    for each in placed.batch.columns.values():
        for part in _parts(each):
            start = next(starts)
            if each.later is not None and part is each.values:
                count = len(part)
                rows = out.take_rows(start, count, part.nbytes // max(1, count))
                yield from each.later.make(rows, workers)
            else:
                out.put(start, np.ascontiguousarray(part).reshape(-1).view(np.uint8))
    out.end()
    return placed.places.finish()


def _buffers(payload: memoryview, buffer_bytes: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    whole = np.frombuffer(payload, np.uint8)
    start = 0
    for length in buffer_bytes:
        yield whole[start : start + length]
        start += length + -length % ALIGNMENT


def _parts(values: Values) -> Iterator[NDArray[np.generic]]:
    if values.column.nullable:
        assert values.valid is not None
        yield values.valid
    if values.offsets is not None:
        yield values.offsets
    yield values.values
