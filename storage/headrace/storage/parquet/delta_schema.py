"""Map the columns of a Delta table to their names in its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.storage.parquet.field_ids import with_id
from headrace.storage.parquet.plain_types import map_type, plain_type

if TYPE_CHECKING:
    Field = pa.Field[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_NAME_KEY = "delta.columnMapping.physicalName"
_ID_KEY = "delta.columnMapping.id"


def physical_schema(schema: pa.Schema, stated: Mapping[str, Any], *, by_id: bool) -> pa.Schema:
    """Return the columns of a table with their names in files, in plain types.

    Args:
        schema: The columns with the table's names.
        stated: The table's ``schemaString``, parsed.
        by_id: Whether files are read by the ids of columns in place of their names.
    """
    return pa.schema(_Mapping(by_id).renamed(list(schema), stated["fields"]))


@dataclass(frozen=True, slots=True)
class _Mapping:
    by_id: bool

    def renamed(self, fields: Sequence[Field], stated: Sequence[Mapping[str, Any]]) -> list[Field]:
        by_name = {field["name"]: field for field in stated}
        return [self._field(field, by_name[field.name]) for field in fields]

    def _field(self, field: Field, stated: Mapping[str, Any]) -> Field:
        metadata = stated.get("metadata", {})
        kind = self._type(plain_type(field.type), stated["type"])
        made = pa.field(metadata.get(_NAME_KEY, field.name), kind, field.nullable)
        return with_id(made, int(metadata[_ID_KEY])) if self.by_id else made

    def _type(self, kind: Any, stated: Any) -> pa.DataType:
        """Rename the fields inside a type; plain types have one form of each kind."""
        if not isinstance(stated, Mapping):
            plain: pa.DataType = kind
            return plain
        if pa.types.is_struct(kind):
            return pa.struct(self.renamed(list(kind), stated["fields"]))
        if pa.types.is_map(kind):
            value = self._type(kind.item_type, stated["valueType"])
            key = self._type(kind.key_type, stated["keyType"])
            return map_type(key, pa.field("value", value, kind.item_field.nullable))
        item = self._type(kind.value_type, stated["elementType"])
        return pa.list_(pa.field("item", item, kind.value_field.nullable))
