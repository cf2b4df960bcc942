"""Combine the schemas of many files: the same columns, each in a type for all files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import UnsupportedColumnError
from headrace.storage.parquet.plain_types import plain_field, wider_field
from headrace.storage.shard.classes import classes_in_features, holds_classes, with_classes
from headrace.storage.shard.types import schema_texts

if TYPE_CHECKING:
    Field = pa.Field[Any]  # pyarrow's stubs have it generic, pyarrow itself has not


@dataclass(frozen=True, slots=True)
class FileSchema:
    """The columns of one file, or of several files with the same columns.

    Attributes:
        file: The name of the first file, for errors.
        schema: The schema as Arrow reads it.
        null_free: The columns without nulls according to the footer.
        classes: The class names of label columns, as stored by Hugging Face's datasets.
    """

    file: str
    schema: pa.Schema
    null_free: frozenset[str]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def plain_schema(file: FileSchema) -> pa.Schema:
    """Return a file's columns in plain types, nullable only if there may be nulls.

    Raises:
        UnsupportedColumnError: A name occurs twice.
    """
    names = file.schema.names
    if len(set(names)) != len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise UnsupportedColumnError(
            f"column {double!r} occurs twice in file {file.file}; rename one", column=double
        )
    fields = (plain_field(field) for field in file.schema)
    return pa.schema(
        [
            field.with_nullable(field.nullable and field.name not in file.null_free)
            for field in fields
        ]
    )


def unified_schema(files: Iterable[FileSchema], *, missing_as_null: bool = False) -> pa.Schema:
    """Return the columns of a dataset, in the order of their first files.

    Args:
        files: The columns of each file.
        missing_as_null: Whether files may lack columns, which are then nullable.

    Raises:
        UnsupportedColumnError: A file lacks a column, has an additional one, or has one in a type
            that does not fit that of another file; or a type cannot be served.
    """
    fields: dict[str, Field] = {}
    first = ""
    for file in files:
        schema = plain_schema(file)
        if not fields:
            first, fields = file.file, {field.name: field for field in schema}
        if not missing_as_null:
            _refuse_missing(fields, schema, file=file.file, first=first)
        fields = _joined(fields, schema, file=file.file, first=first)
    unified = pa.schema(list(fields.values()))
    schema_texts(unified)  # raises for what cannot be served
    return unified


def hugging_face_classes(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the classes that Hugging Face's datasets stored in a file, by column."""
    text = (schema.metadata or {}).get(b"huggingface", b"")
    try:
        noted = json.loads(text) if text else {}
    except ValueError:
        return {}
    info = noted.get("info") if isinstance(noted, dict) else None
    return classes_in_features(info.get("features")) if isinstance(info, dict) else {}


def with_common_classes(schema: pa.Schema, files: Iterable[FileSchema]) -> pa.Schema:
    """Return a dataset's columns with the classes on which all of its files agree.

    If files differ, or one of them has no classes, the meaning of a number is ambiguous, and the
    column has no classes.
    """
    noted = [file.classes for file in files]
    common = {
        name: names
        for name, names in (noted[0] if noted else {}).items()
        if all(other.get(name) == names for other in noted)
    }
    return pa.schema(
        [
            with_classes(field, common[field.name])
            if field.name in common and holds_classes(field.type)
            else field
            for field in schema
        ]
    )


def with_columns(schema: pa.Schema, fields: Iterable[Field]) -> pa.Schema:
    """Return the schema with ``fields`` replacing those of the same names, or appended."""
    added = {field.name: field for field in fields}
    kept = [field for field in schema if field.name not in added]
    return pa.schema([*kept, *added.values()])


def _refuse_missing(
    fields: Mapping[str, Field], schema: pa.Schema, *, file: str, first: str
) -> None:
    for name in _not_in_both(fields, schema.names):
        where, other = (file, first) if name in fields else (first, file)
        raise UnsupportedColumnError(
            f"file {where} has no column {name!r}, but file {other} has one; files of a dataset "
            "must have the same columns, so write it again, or serve the column as null where it "
            "is missing, with SourceOptions(missing_as_null=True), `source: {missing_as_null: "
            "true}` in a server's configuration, or an index that is stored so",
            column=name,
            shard=where,
        )


def _joined(
    fields: Mapping[str, Field], schema: pa.Schema, *, file: str, first: str
) -> dict[str, Field]:
    joined = dict(fields)
    for name in _not_in_both(fields, schema.names):
        known = fields[name] if name in fields else schema.field(name)
        joined[name] = known.with_nullable(True)
    for name, known in fields.items():
        if name not in schema.names:
            continue
        wider = wider_field(known, schema.field(name))
        if wider is None:
            raise UnsupportedColumnError(
                f"column {name!r} is {schema.field(name).type} in file {file} but {known.type} in "
                f"the files before it, first in {first}; write it with one type",
                column=name,
                shard=file,
            )
        joined[name] = wider
    return joined


def _not_in_both(known: Mapping[str, Field], names: list[str]) -> Iterator[str]:
    found = set(names)
    yield from (name for name in known if name not in found)
    yield from (name for name in names if name not in known)
