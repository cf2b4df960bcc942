"""Find the columns of files by the ids that their table gave them, whatever their names.

Iceberg, and Delta with mapping by id, number every column and every field of a struct. A file has
the names that were current when it was written, so a renamed column has two names, and a name may
have had two columns. The physical schema of such a dataset has the ids as metadata of its fields.
Files without ids, which were written before a table was made of them, are matched by the names
that the table keeps for them (Iceberg's name mapping).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import UnsupportedColumnError
from headrace.storage.parquet.plain_types import map_type
from headrace.storage.parquet.unify import FileSchema

if TYPE_CHECKING:
    Field = pa.Field[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_ID = b"PARQUET:field_id"  # as Arrow reads it
_NAMES = b"headrace.names"


def with_id(field: Field, number: int, names: Sequence[str] = ()) -> Field:
    """Return a field of a physical schema that is found by its id.

    Args:
        field: The field.
        number: Its id.
        names: Its names in files without ids.
    """
    stated: dict[bytes | str, bytes | str] = {_ID: str(number).encode()}
    if names:
        stated[_NAMES] = json.dumps(list(names)).encode()
    return field.with_metadata(stated)


def is_by_id(physical: pa.Schema) -> bool:
    """Return whether columns are found by ids."""
    return any(_id_of(field) for field in physical)


def ids_text(physical: pa.Schema) -> str:
    """Return the ids of all fields, in one order; empty without ids."""
    return json.dumps([_ids(field) for field in physical]) if is_by_id(physical) else ""


@dataclass(frozen=True, slots=True)
class FileNames:
    """How the columns of one file are named in the dataset.

    Attributes:
        physical: The dataset's columns, with ids.
        stored: The names in the file, by names of the dataset; others are not read.
    """

    physical: pa.Schema
    stored: Mapping[str, str]

    def renamed(self, table: pa.Table) -> pa.Table:
        """Return a part of the file with the dataset's names, also inside structs."""
        names, columns = [], []
        for name, own in self.stored.items():
            place = table.schema.get_field_index(own)
            if place >= 0:
                names.append(name)
                columns.append(_renamed(table.column(place), self.physical.field(name).type))
        return pa.table(columns, names=names) if names else table.select([])

    def of_file(self, file: FileSchema) -> FileSchema:
        """Return the columns of the file with the dataset's names."""
        fields = []
        for name, own in self.stored.items():
            found = file.schema.field(own)
            kind = _named(found.type, self.physical.field(name).type)
            fields.append(pa.field(name, kind, found.nullable))
        null_free = {name for name, own in self.stored.items() if own in file.null_free}
        return replace(file, schema=pa.schema(fields), null_free=frozenset(null_free), classes={})


def file_names(schema: pa.Schema, physical: pa.Schema, *, file: str) -> FileNames:
    """Return how the columns of a file are named in its dataset.

    Args:
        schema: The columns of the file as Arrow reads them.
        physical: The dataset's columns, with ids.
        file: The name of the file, for errors.

    Raises:
        UnsupportedColumnError: Two columns have one id, or the file has no ids and its table does
            not say which columns its names are.
    """
    matched = _matches(schema, physical)
    stored: dict[str, str] = {}
    for own, wanted in zip(schema, matched, strict=True):
        if wanted is None:
            continue
        if wanted.name in stored or schema.names.count(own.name) > 1:
            raise UnsupportedColumnError(
                f"column {own.name!r} is twice in file {file}, by its name or by its id; write "
                "the file again",
                column=own.name,
                shard=file,
            )
        stored[wanted.name] = own.name
    if not stored and schema.names and not any(map(_id_of, schema)):
        raise UnsupportedColumnError(
            f"file {file} has no field ids, and its table has no name mapping for it "
            "(schema.name-mapping.default); set one, or write the file again",
            column=schema.names[0],
            shard=file,
        )
    return FileNames(physical, stored)


def _matches(fields: Iterable[Field], wanted: Iterable[Field]) -> list[Field | None]:
    """Return the wanted field that each field of a file is, or `None`."""
    choices = list(wanted)
    by_id = {_id_of(field): field for field in choices}
    by_name = {name: field for field in choices for name in _names_of(field)}
    return [
        by_id.get(number) if (number := _id_of(field)) else by_name.get(field.name)
        for field in fields
    ]


def _id_of(field: Field) -> str:
    return (field.metadata or {}).get(_ID, b"").decode()


def _names_of(field: Field) -> list[str]:
    return list(json.loads((field.metadata or {}).get(_NAMES, b"[]")))


def _ids(field: Field) -> list[Any]:
    return [_id_of(field), *(_ids(child) for child in _children(field.type))]


def _children(kind: Any) -> list[Field]:
    return [kind.field(place) for place in range(kind.num_fields)]


def _renamed(column: pa.ChunkedArray[Any], wanted: pa.DataType) -> pa.ChunkedArray[Any]:
    kind: Any = _named(column.type, wanted)
    if kind.equals(column.type):
        return column
    return pa.chunked_array([chunk.view(kind) for chunk in column.chunks], kind)


def _named(kind: Any, wanted: Any) -> pa.DataType:
    """Return a file's type with the dataset's names of fields; others get names that fit nobody."""
    found: pa.DataType = kind
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        matched = zip(kind, _matches(kind, wanted), strict=True)
        return pa.struct(
            [
                pa.field(f"\0{place}", own.type, own.nullable)
                if other is None
                else pa.field(other.name, _named(own.type, other.type), own.nullable)
                for place, (own, other) in enumerate(matched)
            ]
        )
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        value = kind.item_field.with_type(_named(kind.item_type, wanted.item_type))
        return map_type(_named(kind.key_type, wanted.key_type), value)
    if pa.types.is_list(wanted) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        item = kind.value_field.with_type(_named(kind.value_type, wanted.value_type))
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)
    return found
