"""Columns as they are sent: what an Arrow field becomes on the wire."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from headrace.errors import BadArgumentError, ColumnNotFoundError, UnsupportedColumnError
from headrace.payload import ELEMENT_DTYPES, SAMPLE_ID_COLUMN
from headrace.server.layout.flatten_columns import lower_field
from headrace.v1 import shard_service_pb2 as pb

_RESERVED = "headrace."
_VALIDITY = ".valid"  # suffix of a trainer's column that marks the rows with values
_FORMAT_KEY = b"headrace.format"
_MAX_FORMAT_BYTES = 100  # names of formats are short; a schema must fit into a message

# The server handles a bool as the byte that is sent.
DTYPES: Mapping[int, np.dtype[np.generic]] = {
    **ELEMENT_DTYPES,
    pb.ELEMENT_TYPE_BOOL: np.dtype(np.uint8),
}
ARROW_TYPES: Mapping[pb.ElementType, pa.DataType] = {
    pb.ELEMENT_TYPE_BOOL: pa.bool_(),
    pb.ELEMENT_TYPE_INT8: pa.int8(),
    pb.ELEMENT_TYPE_INT16: pa.int16(),
    pb.ELEMENT_TYPE_INT32: pa.int32(),
    pb.ELEMENT_TYPE_INT64: pa.int64(),
    pb.ELEMENT_TYPE_UINT8: pa.uint8(),
    pb.ELEMENT_TYPE_UINT16: pa.uint16(),
    pb.ELEMENT_TYPE_UINT32: pa.uint32(),
    pb.ELEMENT_TYPE_UINT64: pa.uint64(),
    pb.ELEMENT_TYPE_FLOAT16: pa.float16(),
    pb.ELEMENT_TYPE_FLOAT32: pa.float32(),
    pb.ELEMENT_TYPE_FLOAT64: pa.float64(),
}
_ELEMENTS = {arrow: number for number, arrow in ARROW_TYPES.items()}


@dataclass(frozen=True, slots=True)
class WireColumn:
    """One column as it is sent.

    Attributes:
        name: The column's name.
        kind: How its rows lie in a payload.
        element_type: The type of an element, for the schema.
        dtype: The NumPy dtype of an element; a bool is one byte.
        item_shape: The shape of one row of a tensor; empty for scalars and other kinds.
        nullable: Whether a validity buffer comes before the others.
        logical_type: What the values mean if the element type does not say so.
        stored_column: The dataset's column that it comes from.
    """

    name: str
    kind: pb.ColumnKind
    element_type: pb.ElementType
    dtype: np.dtype[np.generic]
    item_shape: tuple[int, ...] = ()
    nullable: bool = False
    logical_type: str = ""
    stored_column: str = ""

    @property
    def is_tensor(self) -> bool:
        """Whether every row has the same shape."""
        return self.kind == pb.COLUMN_KIND_TENSOR

    @property
    def item_bytes(self) -> int:
        """Bytes of one row of a tensor."""
        return math.prod(self.item_shape) * self.dtype.itemsize

    def to_proto(self) -> pb.Column:
        """Return the column as the schema describes it."""
        return pb.Column(
            name=self.name,
            kind=self.kind,
            element_type=self.element_type,
            item_shape=self.item_shape,
            nullable=self.nullable,
            logical_type=self.logical_type,
            stored_column=self.stored_column if self.stored_column != self.name else "",
        )


SAMPLE_IDS = WireColumn(
    SAMPLE_ID_COLUMN, pb.COLUMN_KIND_TENSOR, pb.ELEMENT_TYPE_INT64, np.dtype("<i8")
)


def wire_column(field: pa.Field[Any]) -> WireColumn:
    """Return the column that a field becomes.

    Raises:
        UnsupportedColumnError: Values of its type cannot be sent.
    """
    if field.name.startswith(_RESERVED):
        raise UnsupportedColumnError(
            f"column {field.name!r} has the name of a column that the server makes itself; "
            "rename it",
            column=field.name,
        )
    kind, element, shape = _kind(field)
    number = _ELEMENTS[element]
    return WireColumn(field.name, kind, number, DTYPES[number], shape, field.nullable)


def split_schema(
    schema: pa.Schema, *, item_nulls: bool = False
) -> tuple[tuple[WireColumn, ...], dict[str, str]]:
    """Return the columns that can be sent, in storage order, and the reasons against all others.

    Args:
        schema: The schema of the dataset.
        item_nulls: Whether lists may hold null items.
    """
    columns: list[WireColumn] = []
    refused: dict[str, str] = {}
    for field in schema:
        try:
            columns += _parts(field, item_nulls=item_nulls)
        except UnsupportedColumnError as error:
            refused[field.name] = error.message
    refused |= _collisions(columns, schema.names)
    return tuple(part for part in columns if part.stored_column not in refused), refused


def _collisions(columns: Sequence[WireColumn], stored: Sequence[str]) -> dict[str, str]:
    """Return the reasons against columns whose flattened names collide.

    A column of the dataset keeps its name. If several flattened columns have the same name, none of
    them is sent, so that the result does not depend on their order.
    """
    owners: dict[str, list[str]] = {name: [name] for name in stored}
    for part in columns:
        if part.name != part.stored_column:
            owners.setdefault(part.name, []).append(part.stored_column)
    refused = {}
    for name, found in owners.items():
        for column in found if len(found) > 1 else ():
            if column != name:
                refused[column] = (
                    f"column {column!r} is split into columns, one of which would be {name!r}, but "
                    "there is already a column of that name; rename one of them"
                )
    return refused


def _format(field: pa.Field[Any]) -> str:
    """Return the dataset's format of the values of a column, such as ``bfloat16`` or ``jpeg``."""
    stated: bytes = (field.metadata or {}).get(_FORMAT_KEY, b"")
    return stated[:_MAX_FORMAT_BYTES].decode(errors="replace")


def _parts(field: pa.Field[Any], *, item_nulls: bool) -> list[WireColumn]:
    """Return the columns that a column of the dataset becomes."""
    return [
        replace(
            wire_column(pa.field(lowered.name, lowered.type, lowered.nullable)),
            logical_type=lowered.logical_type
            or (_format(field) if lowered.name == field.name else ""),
            stored_column=field.name,
        )
        for lowered in lower_field(field, item_nulls=item_nulls)
    ]


def choose_columns(
    names: Sequence[str], columns: Iterable[WireColumn], refused: dict[str, str]
) -> tuple[WireColumn, ...]:
    """Return the requested columns, in the requested order.

    Args:
        names: The requested names; empty for all columns.
        columns: The columns of the dataset that can be sent.
        refused: The reasons why other columns of the dataset cannot be sent.

    Raises:
        BadArgumentError: A name appears twice.
        ColumnNotFoundError: The dataset has no such column.
        UnsupportedColumnError: The column exists, but cannot be sent.
    """
    by_name = {column.name: column for column in columns}
    whole = _by_stored_column(by_name.values())
    if not names:
        for reason in refused.values():
            raise UnsupportedColumnError(f"{reason}; name the columns that you want")
        return tuple(by_name.values())
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise BadArgumentError(f"column {twice!r} is requested more than once", field="columns")
    for name in names:
        if name in refused:
            raise UnsupportedColumnError(refused[name], field="columns", column=name)
        if name not in by_name and name not in whole:
            raise ColumnNotFoundError(
                f"there is no column {name!r}; the dataset has {', '.join(whole)}",
                field="columns",
                column=name,
            )
    wanted = [part for name in names for part in whole.get(name) or [by_name[name]]]
    return tuple(dict.fromkeys(wanted))


def refuse_large(size: int, limit: int, *, field: str = "global_batch_size") -> None:
    """Refuse a batch that is larger than the server allows.

    Args:
        size: The size of the payload, or of a part of it, in bytes.
        limit: The server's limit.
        field: The field of the request that the caller should reduce.

    Raises:
        BadArgumentError: The size exceeds the limit.
    """
    if size > limit:
        raise BadArgumentError(
            f"a batch of at least {size} bytes exceeds this server's limit of {limit}; use a "
            f"smaller {field} or fewer columns",
            field=field,
        )


def refuse_taken_names(columns: Iterable[WireColumn]) -> None:
    """Refuse columns that would share a name in a batch.

    Trainers get a column ``x.valid`` for each nullable column ``x``.

    Raises:
        UnsupportedColumnError: A column has the name of another's validity.
    """
    names = {column.name: column for column in columns}
    for column in names.values():
        taken = f"{column.name}{_VALIDITY}"
        if column.nullable and taken in names:
            raise UnsupportedColumnError(
                f"column {column.name!r} may be null, so a batch has a column {taken!r} that says "
                "which of its rows are valid, but there is already a column of that name; request "
                f"columns without one of the two, or rename {taken!r} in the data",
                field="columns",
                column=taken,
            )


def _by_stored_column(columns: Iterable[WireColumn]) -> dict[str, list[WireColumn]]:
    whole: dict[str, list[WireColumn]] = {}
    for column in columns:
        whole.setdefault(column.stored_column or column.name, []).append(column)
    return whole


def _kind(field: pa.Field[Any]) -> tuple[pb.ColumnKind, pa.DataType, tuple[int, ...]]:
    value = field.type
    if value in _ELEMENTS:
        return pb.COLUMN_KIND_TENSOR, value, ()
    if isinstance(value, pa.FixedShapeTensorType):
        if value.permutation is None or list(value.permutation) == sorted(value.permutation):
            return _tensor(field, value.value_type, tuple(value.shape))
        raise _unsupported(field)
    if pat.is_fixed_size_list(value):
        element, shape = _nested_shape(value)
        return _tensor(field, element, shape)
    if pat.is_string(value) or pat.is_large_string(value):
        return pb.COLUMN_KIND_STRING, pa.uint8(), ()
    if pat.is_binary(value) or pat.is_large_binary(value) or pat.is_fixed_size_binary(value):
        return pb.COLUMN_KIND_BYTES, pa.uint8(), ()
    if (pat.is_list(value) or pat.is_large_list(value)) and value.value_type in _ELEMENTS:
        return pb.COLUMN_KIND_RAGGED, value.value_type, ()
    raise _unsupported(field)


def _tensor(
    field: pa.Field[Any], element: pa.DataType, shape: tuple[int, ...]
) -> tuple[pb.ColumnKind, pa.DataType, tuple[int, ...]]:
    if element not in _ELEMENTS or math.prod(shape) == 0:
        raise _unsupported(field)
    return pb.COLUMN_KIND_TENSOR, element, shape


def _nested_shape(value: pa.DataType) -> tuple[pa.DataType, tuple[int, ...]]:
    shape: list[int] = []
    while pat.is_fixed_size_list(value):
        shape.append(value.list_size)
        value = value.value_type
    return value, tuple(shape)


def _unsupported(field: pa.Field[Any]) -> UnsupportedColumnError:
    return UnsupportedColumnError(
        f"column {field.name!r} has the type {field.type}, which cannot be sent",
        column=field.name,
    )
