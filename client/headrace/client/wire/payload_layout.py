"""Find the columns in a payload: pure arithmetic over the wire's layout, no copy.

docs/protocol.md describes the layout; this module is its reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StreamCorruptError
from headrace.payload import ELEMENT_DTYPES, aligned
from headrace.v1 import shard_service_pb2 as pb

_T = TypeVar("_T", bound=np.generic)

_BOOL = np.dtype(np.bool_)
_OFFSET = np.dtype(np.int64)

_MOST_DIMENSIONS = 32
"""NumPy's limit for decades; now it is 64."""
_MOST_ITEM_BYTES = 1 << 40

_KINDS = frozenset(
    {
        pb.COLUMN_KIND_TENSOR,
        pb.COLUMN_KIND_BYTES,
        pb.COLUMN_KIND_STRING,
        pb.COLUMN_KIND_RAGGED,
    }
)


# Made for each column of each batch: a frozen one would take four times as long.
@dataclass(slots=True, eq=False)
class ColumnView:
    """One column of one batch, as views of the payload; nobody changes it.

    Attributes:
        kind: ``pb.ColumnKind``.
        values: ``(samples, *item_shape)`` for tensors; flat values, or bytes, for the others.
        offsets: ``(samples + 1,) int64`` in elements for all kinds but tensors.
        valid: ``(samples,) bool`` where the column may hold nulls.
    """

    kind: int
    values: NDArray[np.generic]
    offsets: NDArray[np.int64] | None = None
    valid: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class _Field:
    """What a column has in common in all batches of a stream."""

    name: str
    kind: int
    dtype: np.dtype[np.generic]
    item_shape: tuple[int, ...]
    nullable: bool


class PayloadReader:
    """Reads the payloads of one stream; names and types are resolved once."""

    def __init__(self, columns: Sequence[pb.Column]) -> None:
        """Prepare for the columns of a ``StreamStart``.

        Raises:
            StreamCorruptError: A column has an unknown type, or the name of another column or of
                its validity.
        """
        _refuse_taken_names(columns)
        self._fields = tuple(_field(column) for column in columns)
        self._is_even = all(field.kind == pb.COLUMN_KIND_TENSOR for field in self._fields)
        self._same = _NO_PLACES

    def decode(
        self, buffer_bytes: Iterable[int], payload: NDArray[np.uint8], *, sample_count: int
    ) -> dict[str, ColumnView]:
        """Split a payload into its columns.

        Args:
            buffer_bytes: The lengths of ``BatchHeader``.
            payload: ``(payload_bytes,) uint8``; the views share its memory.
            sample_count: Number of samples in the batch; of rows, if the columns have other rows.

        Raises:
            StreamCorruptError: The lengths do not fit the columns or the payload.
        """
        lengths = list(buffer_bytes)
        cursor = _Cursor(lengths, payload)
        views = {field.name: _view(field, cursor, sample_count) for field in self._fields}
        cursor.finish(len(self._fields))
        self._same = _NO_PLACES
        if self._is_even and sample_count:
            self._same = ColumnPlaces(sample_count, lengths, payload.size, _places(views, payload))
        return views

    def like_last(
        self, buffer_bytes: Sequence[int], *, payload_bytes: int, sample_count: int
    ) -> ColumnPlaces | None:
        """Return where the columns lie if the layout is that of the last payload, else None.

        The arguments are those of `decode`.
        """
        same = self._same
        is_like = (
            sample_count == same.row_count
            and payload_bytes == same.payload_bytes
            and buffer_bytes == same.lengths
        )
        return same if is_like else None


class ColumnPlace(NamedTuple):
    """Where a column of tensors lies in the payload."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    offset: int
    valid_offset: int | None


@dataclass(frozen=True, slots=True)
class ColumnPlaces:
    """Where the columns of a batch of tensors lie; equal lengths mean equal places.

    Attributes:
        row_count: Number of rows of each column.
        lengths: Bytes of each buffer.
        payload_bytes: Bytes of the payload.
        columns: The place of each column.
    """

    row_count: int
    lengths: list[int]
    payload_bytes: int
    columns: tuple[ColumnPlace, ...]


_NO_PLACES = ColumnPlaces(-1, [], 0, ())


def _places(views: Mapping[str, ColumnView], payload: NDArray[np.uint8]) -> tuple[ColumnPlace, ...]:
    first = payload.ctypes.data
    return tuple(
        ColumnPlace(
            name,
            view.values.shape,
            view.values.dtype,
            view.values.ctypes.data - first if view.values.size else 0,
            None if view.valid is None else view.valid.ctypes.data - first,
        )
        for name, view in views.items()
    )


def views_of(same: ColumnPlaces, memory: memoryview) -> dict[str, ColumnView]:
    """Return the columns at these places in a payload."""
    views = {}
    for name, shape, dtype, offset, valid_offset in same.columns:
        valid = None
        if valid_offset is not None:
            valid = np.ndarray(same.row_count, _BOOL, memory, valid_offset)
        values: NDArray[np.generic] = np.ndarray(shape, dtype, memory, offset)
        views[name] = ColumnView(pb.COLUMN_KIND_TENSOR, values, None, valid)
    return views


class _Cursor:
    """Walks over the buffers of a payload and refuses unexpected ones."""

    def __init__(self, lengths: Sequence[int], payload: NDArray[np.uint8]) -> None:
        self._lengths = lengths
        self._payload, self._memory = payload, payload.data
        self._next = 0
        self._start = self._end = 0

    def take(self, field: _Field, dtype: np.dtype[_T], shape: tuple[int, ...]) -> NDArray[_T]:
        """Return the next buffer as ``shape`` of ``dtype``."""
        if self._next == len(self._lengths):
            raise StreamCorruptError(
                f"a batch has {self._next} buffers; column {field.name!r} needs one more"
            )
        length, start = self._lengths[self._next], self._start
        wanted = prod(shape) * dtype.itemsize
        if length != wanted or start + length > self._payload.size:
            raise StreamCorruptError(
                f"column {field.name!r} has a buffer of {length} bytes at {start} of a payload of "
                f"{self._payload.size}; {shape} of {dtype} need {wanted}",
                column=field.name,
            )
        self._next += 1
        self._end = start + length
        self._start = aligned(self._end)
        return np.ndarray(shape, dtype, self._memory, start)

    def finish(self, column_count: int) -> None:
        if self._next != len(self._lengths):
            raise StreamCorruptError(
                f"a batch has {len(self._lengths)} buffers; its {column_count} columns need "
                f"{self._next}"
            )
        if self._end != self._payload.size:
            raise StreamCorruptError(
                f"a payload has {self._payload.size} bytes, and its buffers end at {self._end}"
            )


def _refuse_taken_names(columns: Sequence[pb.Column]) -> None:
    names = [column.name for column in columns]
    names += [f"{column.name}.valid" for column in columns if column.nullable]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise StreamCorruptError(
            f"the server sends two columns that a batch would call {twice!r}; choose columns= "
            "without one of the two, or rename it in the data"
        )


def _field(column: pb.Column) -> _Field:
    dtype = ELEMENT_DTYPES.get(column.element_type)
    if dtype is None or column.kind not in _KINDS:
        raise StreamCorruptError(
            f"column {column.name!r} has kind {column.kind} and element type "
            f"{column.element_type}, which this client does not know: update the client, or leave "
            "the column out with columns=",
            column=column.name,
        )
    shape = _item_shape(column, dtype.itemsize)
    return _Field(column.name, column.kind, dtype, shape, column.nullable)


def _item_shape(column: pb.Column, item_bytes: int) -> tuple[int, ...]:
    """Return the shape of a column's items.

    Args:
        column: The column as received.
        item_bytes: Bytes of an element.

    Raises:
        StreamCorruptError: No array can have it.
    """
    shape = tuple(column.item_shape)
    size = item_bytes
    for length in shape:
        size *= max(1, length)
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0 or size > _MOST_ITEM_BYTES:
        raise StreamCorruptError(
            f"column {column.name[:100]!r} has items of shape {shape[:_MOST_DIMENSIONS]}; expected "
            f"up to {_MOST_DIMENSIONS} lengths >= 0 and at most {_MOST_ITEM_BYTES} bytes",
            column=column.name[:100],
        )
    return shape


def _view(field: _Field, cursor: _Cursor, sample_count: int) -> ColumnView:
    valid = cursor.take(field, _BOOL, (sample_count,)) if field.nullable else None
    if field.kind == pb.COLUMN_KIND_TENSOR:
        values = cursor.take(field, field.dtype, (sample_count, *field.item_shape))
        return ColumnView(field.kind, values, None, valid)
    offsets = cursor.take(field, _OFFSET, (sample_count + 1,))
    falls = offsets[1:] < offsets[:-1]
    # The result of `any`, in a sixth of its time.
    if offsets[0] != 0 or (sample_count and falls[falls.argmax()]):
        raise StreamCorruptError(
            f"column {field.name!r} has offsets that decrease or do not start at 0",
            column=field.name,
        )
    values = cursor.take(field, field.dtype, (int(offsets[-1]),))
    return ColumnView(field.kind, values, offsets, valid)
