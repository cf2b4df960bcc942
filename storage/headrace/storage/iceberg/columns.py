"""The columns of an Iceberg table: what readers see, and how files have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import UnsupportedColumnError
from headrace.storage.parquet.field_ids import with_id
from headrace.storage.parquet.layout import TableColumns
from headrace.storage.parquet.plain_types import map_type, plain_type

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import NameMapping

    Field = pa.Field[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_ID = b"PARQUET:field_id"
_Names = Mapping[int, list[str]]


def table_columns(schema: Schema, names: NameMapping | None, *, snapshot: int) -> TableColumns:
    """Return the columns of a table.

    Args:
        schema: The schema to read with.
        names: The names of columns in files without ids.
        snapshot: The id of the snapshot.

    Raises:
        UnsupportedColumnError: A column has a type that Arrow lacks.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 - an extra

    stated: list[Field] = []
    for field in schema.fields:
        try:
            stated.append(schema_to_pyarrow(type(schema)(field)).field(0))
        except (NotImplementedError, TypeError, ValueError) as error:
            raise UnsupportedColumnError(
                f"column {field.name!r} has the type {field.field_type}, which headrace does not "
                f"read: {error}; drop it, or cast it in a copy",
                column=field.name,
            ) from error
    known = _known_names(names)
    return TableColumns(
        schema=pa.schema([_plain(field) for field in stated]),
        physical=pa.schema([_with_ids(_plain(field), field, known) for field in stated]),
        version=snapshot,
    )


def _plain(field: Field) -> Field:
    return pa.field(field.name, plain_type(field.type), field.nullable)


def _with_ids(plain: Field, stated: Field, names: _Names) -> Field:
    """Return a field in plain types with the ids of the same field as pyiceberg states it."""
    number = int((stated.metadata or {})[_ID])
    made = plain.with_type(_type_with_ids(plain.type, stated.type, names))
    return with_id(made, number, names.get(number, []))


def _type_with_ids(plain: Any, stated: Any, names: _Names) -> pa.DataType:
    kind: pa.DataType = plain
    if pa.types.is_struct(plain):
        pairs = zip(plain, stated, strict=True)
        return pa.struct([_with_ids(own, other, names) for own, other in pairs])
    if pa.types.is_map(plain):
        key = _type_with_ids(plain.key_type, stated.key_type, names)
        value = _type_with_ids(plain.item_type, stated.item_type, names)
        return map_type(key, plain.item_field.with_type(value))
    if pa.types.is_list(plain):
        item = _type_with_ids(plain.value_type, stated.value_type, names)
        return pa.list_(plain.value_field.with_type(item))
    return kind


def _known_names(names: NameMapping | None) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    left = [*names] if names is not None else []
    while left:
        field = left.pop()
        if field.field_id is not None:
            found[field.field_id] = list(field.names)
        left.extend(field.fields)
    return found
