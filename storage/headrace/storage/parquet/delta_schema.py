"""Map the columns of a Delta table to their names in its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.storage.parquet.plain_types import map_type, plain_type

if TYPE_CHECKING:
    Field = pa.Field[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_NAME_KEY = "delta.columnMapping.physicalName"


def physical_schema(schema: pa.Schema, stated: Mapping[str, Any]) -> pa.Schema:
    """Return the columns of a table with their names in files, in plain types.

    Args:
        schema: The columns with the table's names.
        stated: The table's ``schemaString``, parsed.
    """
    return pa.schema(_renamed(list(schema), stated["fields"]))


def _renamed(fields: Sequence[Field], stated: Sequence[Mapping[str, Any]]) -> list[Field]:
    by_name = {field["name"]: field for field in stated}
    return [_field(field, by_name[field.name]) for field in fields]


def _field(field: Field, stated: Mapping[str, Any]) -> Field:
    name = stated.get("metadata", {}).get(_NAME_KEY, field.name)
    return pa.field(name, _type(plain_type(field.type), stated["type"]), field.nullable)


def _type(kind: Any, stated: Any) -> pa.DataType:
    """Rename the fields inside a type; plain types have one form of each kind."""
    if not isinstance(stated, Mapping):
        plain: pa.DataType = kind
        return plain
    if pa.types.is_struct(kind):
        return pa.struct(_renamed(list(kind), stated["fields"]))
    if pa.types.is_map(kind):
        value = pa.field(
            "value", _type(kind.item_type, stated["valueType"]), kind.item_field.nullable
        )
        return map_type(_type(kind.key_type, stated["keyType"]), value)
    item = _type(kind.value_type, stated["elementType"])
    return pa.list_(pa.field("item", item, kind.value_field.nullable))
