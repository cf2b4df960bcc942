"""Cut the sequences of rows: each part has the same length, and columns are cut alike."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import SequenceLayout
from headrace.payload import SAMPLE_ID_COLUMN
from headrace.server.batch.batch_values import Batch, Values
from headrace.server.batch.stage import Columns, ColumnStage, Work, tensor_of, wanted_column
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.stages.slices.documents import Documents, cut_edges, rearranged
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import slices_pb2

_LAYOUTS = {
    slices_pb2.SLICE_LAYOUT_UNSPECIFIED: SequenceLayout.CONTIGUOUS,
    slices_pb2.SLICE_LAYOUT_CONTIGUOUS: SequenceLayout.CONTIGUOUS,
    slices_pb2.SLICE_LAYOUT_ZIGZAG: SequenceLayout.ZIGZAG,
    slices_pb2.SLICE_LAYOUT_DOCUMENTS: SequenceLayout.DOCUMENTS,
}
_KINDS = (
    pb.COLUMN_KIND_TENSOR,
    pb.COLUMN_KIND_RAGGED,
    pb.COLUMN_KIND_STRING,
    pb.COLUMN_KIND_BYTES,
)
_MOST_PARTS = 1 << 16
# Indices, and what makes them, of an element of a part of documents (counted in the code).
_INDEX_BYTES = 64


class Slice(ColumnStage):
    """Cut columns for one part, and leave out others.

    Raises:
        BadArgumentError: The options do not belong together.
    """

    def __init__(self, message: slices_pb2.Slice) -> None:
        self._columns = tuple(message.columns)
        self._part, self._parts = message.part, message.part_count or 1
        self._fills = dict(zip(message.columns, message.fills, strict=False))
        self._boundaries, self._positions = message.boundaries, message.positions
        self._without = frozenset(message.without)
        if not 1 <= self._parts <= _MOST_PARTS or not 0 <= self._part < self._parts:
            raise _bad(
                f"part is {self._part} of {self._parts}; it must be in [0, part_count), of at most "
                f"{_MOST_PARTS}"
            )
        if message.layout not in _LAYOUTS:
            raise _bad(f"layout is {message.layout}, which is not a SliceLayout")
        self._layout = _LAYOUTS[message.layout]
        self._is_cut = self._parts > 1 and bool(self._columns)
        self._by_document = self._is_cut and self._layout is SequenceLayout.DOCUMENTS
        if len(message.fills) not in {0, len(self._columns)} or len(self._columns) != len(
            set(self._columns)
        ):
            raise _bad(
                f"there are {len(message.fills)} fills for the columns {self._columns}; it must "
                "have each column once, and one fill for each, or none"
            )
        if self._positions and not self._columns:
            raise _bad("positions are those of elements of columns, but there are none")
        if self._by_document and (self._positions or not self._boundaries):
            raise _bad(
                "the layout of documents needs the column of boundaries, and adds no positions; "
                "cut the column of positions of packed rows instead"
            )

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        for name in self._without:
            wanted_column(before, name, "slice", _KINDS)
        if SAMPLE_ID_COLUMN in self._without:
            raise _bad(f"column {SAMPLE_ID_COLUMN!r} belongs to the server; leave it in")
        made = dict(before)
        length = self._length(before)
        if self._boundaries:
            edges = wanted_column(before, self._boundaries, "slice", (pb.COLUMN_KIND_RAGGED,))
            if edges.dtype.kind not in "iu" or edges.nullable:
                raise _bad(f"column {edges.name!r} does not have the boundaries of packed rows")
        if self._positions:
            if self._positions in before:
                raise _bad(f"it would add a column {self._positions!r}, which already exists")
            own = sum(stop - start for start, stop in self._stretches(length))
            made[self._positions] = _positions_column(self._positions, own)
        if self._is_cut:
            for name in self._columns:
                made[name] = self._cut_column(before[name], length)
        return {name: column for name, column in made.items() if name not in self._without}

    def _length(self, before: Columns) -> int:
        """Return the length of all sequences, which must be the same."""
        lengths = {}
        for name in self._columns:
            column = wanted_column(before, name, "slice", (pb.COLUMN_KIND_TENSOR,))
            if not column.item_shape:
                raise _bad(f"column {name!r} has no sequence but a number in each row")
            lengths[name] = column.item_shape[0]
            _check_fill(column, self._fills.get(name, 0.0))
        if len(set(lengths.values())) > 1:
            raise _bad(
                f"sequences have the lengths {lengths}; they must have one, so that they are cut "
                "alike"
            )
        length = next(iter(lengths.values()), 0)
        if self._is_cut and not self._by_document and not self._fills and length % self._unit:
            raise _bad(
                f"column {self._columns[0]!r} has sequences of {length}, which is not a multiple "
                f"of {self._unit} for {self._parts} parts; make them longer, or say what to fill "
                "them up with"
            )
        return length

    @property
    def _unit(self) -> int:
        return self._layout.unit(self._parts)

    def _stretches(self, length: int) -> list[tuple[int, int]]:
        if not self._is_cut:
            return [(0, length)]
        whole = -(-length // self._unit) * self._unit
        return self._layout.stretches(whole, self._part, self._parts)

    def _cut_column(self, column: WireColumn, length: int) -> WireColumn:
        if not self._by_document:
            own = sum(stop - start for start, stop in self._stretches(length))
            return tensor_of(column, (own, *column.item_shape[1:]))
        if not self._fills:
            return tensor_of(column, (length // self._parts, *column.item_shape[1:]))
        if len(column.item_shape) > 1:
            raise _bad(
                f"column {column.name!r} has {len(column.item_shape)} axes; documents of several "
                "lengths can be filled up in sequences of numbers alone"
            )
        return replace(column, kind=pb.COLUMN_KIND_RAGGED, item_shape=())

    def cost(self, batch: Batch) -> int:
        if not self._is_cut:
            return 0
        found = [batch.columns[name].values for name in self._columns]
        elements = max(math.prod(each.shape[:2]) for each in found)
        if not self._by_document:
            return sum(each.nbytes for each in found) + 4 * elements
        # Each document grows by less than a unit.
        documents = batch.columns[self._boundaries].values.size
        grown = (elements + documents * self._unit) // self._parts
        itemsize = sum(each.dtype.itemsize for each in found)
        return grown * (_INDEX_BYTES + itemsize) + documents * _INDEX_BYTES

    def work(self, batch: Batch) -> Work[Batch]:
        made = {name: each for name, each in batch.columns.items() if name not in self._without}
        if self._by_document:
            yield from self._cut_documents(batch, made)
        elif self._is_cut or self._positions:
            yield from self._cut_rows(batch, made)
        return replace(batch, columns=made)

    def _cut_rows(self, batch: Batch, made: dict[str, Values]) -> Work[None]:
        length = self._length({name: each.column for name, each in batch.columns.items()})
        stretches = self._stretches(length)
        if self._positions and self._positions not in self._without:
            own = np.concatenate([np.arange(*each, dtype=np.int32) for each in stretches])
            made[self._positions] = Values(
                _positions_column(self._positions, own.size), np.tile(own, (batch.row_count, 1))
            )
        for name in self._columns if self._is_cut else ():
            found = batch.columns[name]
            values = _cut(found.values, stretches, self._fills.get(name, 0))
            if name in made:
                made[name] = replace(
                    found, column=self._cut_column(found.column, length), values=values
                )
            yield
        if self._is_cut and self._boundaries in made:
            whole = -(-length // self._unit) * self._unit
            edges = Documents.of(batch.columns[self._boundaries], length).edges_to(whole)
            made[self._boundaries] = cut_edges(batch.columns[self._boundaries], edges, stretches)

    def _cut_documents(self, batch: Batch, made: dict[str, Values]) -> Work[None]:
        boundaries = batch.columns[self._boundaries]
        length = batch.columns[self._columns[0]].column.item_shape[0]
        documents = Documents.of(boundaries, length)
        part = rearranged(
            documents, self._part, self._parts, length=length, grows=bool(self._fills)
        )
        yield
        for name in self._columns:
            found = batch.columns[name]
            column = self._cut_column(found.column, found.column.item_shape[0])
            flat = found.values.reshape(-1, *found.values.shape[2:])
            values = flat[part.index]
            if self._fills:
                # An empty one is also that of two opaque bytes.
                empty = np.zeros((), values.dtype)
                values[~part.is_there] = self._fills[name] or empty
            else:
                values = values.reshape(batch.row_count, *column.item_shape)
            if name in made:
                offsets = part.offsets if self._fills else None
                made[name] = Values(column, values, offsets, found.valid)
            yield
        if self._boundaries in made:
            made[self._boundaries] = part.boundaries(boundaries)


def _cut(
    values: NDArray[np.generic], stretches: list[tuple[int, int]], fill: float
) -> NDArray[np.generic]:
    """Return ``(rows, elements of the stretches, ...)``; what lies after the rows is filled."""
    length = values.shape[1]
    if len(stretches) == 1 and stretches[0][1] <= length:
        return values[:, slice(*stretches[0])]
    size = sum(stop - start for start, stop in stretches)
    out: NDArray[np.generic] = np.zeros((len(values), size, *values.shape[2:]), values.dtype)
    if fill:
        out[...] = fill
    at = 0
    for start, stop in stretches:
        there = values[:, start:stop]
        out[:, at : at + there.shape[1]] = there
        at += stop - start
    return out


def _positions_column(name: str, length: int) -> WireColumn:
    return WireColumn(
        name, pb.COLUMN_KIND_TENSOR, pb.ELEMENT_TYPE_INT32, np.dtype("<i4"), (length,)
    )


def _check_fill(column: WireColumn, fill: float) -> None:
    if not fill or column.dtype.kind == "f":
        return
    if column.dtype.kind in "iu":
        bits = 8 * column.dtype.itemsize
        low, high = (0, 1 << bits) if column.dtype.kind == "u" else (-1 << bits - 1, 1 << bits - 1)
        if fill.is_integer() and low <= fill < high:
            return
    raise _bad(f"the fill {fill} is none of {column.dtype.name} for column {column.name!r}")


def _bad(message: str) -> BadArgumentError:
    return BadArgumentError(f"slice: {message}", field="stages")
