"""The schema of a shard, which many shards of an index share: columns and storage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from headrace.storage.mds.compression import Compression, parse_compression
from headrace.storage.mds.encoding import Encoding, parse_encoding
from headrace.storage.mds.text_shard import TextForm, text_encoding, text_form


@dataclass(frozen=True, slots=True)
class ShardSchema:
    """The columns of a shard, and how it is stored.

    Attributes:
        names: The names of the columns, in the order of a sample's values.
        encodings: The encoding for each name.
        compression: The compression of the shard, or `None`.
        text: How lines are written, or `None` for a binary shard.
    """

    names: tuple[str, ...]
    encodings: tuple[Encoding, ...]
    compression: Compression | None
    text: TextForm | None = None

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Return the size of each column's values in bytes, or `None` if it varies."""
        return tuple(encoding.size for encoding in self.encodings)


def dynamic_columns(schema: ShardSchema) -> list[tuple[str, Encoding]]:
    """Return the columns for which only samples show the type of arrays."""
    columns = zip(schema.names, schema.encodings, strict=True)
    return [(name, encoding) for name, encoding in columns if encoding.is_dynamic]


def schema_object(schema: ShardSchema) -> Mapping[str, object]:
    """Return a schema as a JSON value, as `schema_from_object` reads it."""
    return {
        "names": list(schema.names),
        "encodings": [encoding.text for encoding in schema.encodings],
        "sizes": list(schema.sizes),
        "compression": schema.compression.text if schema.compression else None,
        "text": asdict(schema.text) if schema.text else None,
    }


def schema_from_object(value: Mapping[str, object]) -> ShardSchema:
    """Return the schema that `schema_object` wrote.

    Raises:
        ValueError: It is not a schema; the message says why.
        KeyError: A part of it is missing.
    """
    schema = schema_of(
        sequence_of(value, "names"),
        sequence_of(value, "encodings"),
        sequence_of(value, "sizes"),
        value["compression"],
    )
    form = value["text"]
    return replace(schema, text=TextForm(**form)) if isinstance(form, dict) else schema


def schema_text(schema: ShardSchema) -> str:
    """Return the canonical text of a schema, from which the fingerprint is computed."""
    compression = schema.compression.algorithm if schema.compression else None
    columns = [
        [name, encoding.text] for name, encoding in zip(schema.names, schema.encodings, strict=True)
    ]
    parts: list[object] = [columns, compression]
    if schema.text is not None:
        parts += [schema.text.format, schema.text.newline, schema.text.separator]
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=True) + "\n"


def text_schema_of(value: Mapping[str, object]) -> ShardSchema | None:
    """Return the schema of a text shard in an index; `None` for any other shard.

    Raises:
        ValueError: It is not a schema; the message says why.
        KeyError: A part of it is missing.
    """
    form = text_form(value)
    if form is None:
        return None
    if form.format == "json":
        columns = value["columns"]
        if not isinstance(columns, dict):
            raise ValueError("columns is not a JSON object")
        names, texts = list(columns), list(columns.values())
    else:
        names = list(sequence_of(value, "column_names"))
        texts = list(sequence_of(value, "column_encodings"))
    encodings = [text_encoding(text) for text in texts]
    sizes = [encoding.size for encoding in encodings]
    schema = schema_of(names, [e.text for e in encodings], sizes, value["compression"])
    return replace(schema, text=form)


def schema_of(
    names: Sequence[object], texts: Sequence[object], sizes: Sequence[object], compression: object
) -> ShardSchema:
    """Return the schema of a shard in an index.

    Raises:
        ValueError: It is not a schema; the message says why.
    """
    if not names or not len(names) == len(texts) == len(sizes):
        raise ValueError(f"{len(names)} names, {len(texts)} encodings, {len(sizes)} sizes found")
    if len(set(names)) < len(names):
        raise ValueError(f"a column name occurs twice in {str(names)[:200]}")
    schema = ShardSchema(
        names=tuple(_column_name(name) for name in names),
        encodings=tuple(parse_encoding(str(text)) for text in texts),
        compression=None if compression is None else parse_compression(str(compression)),
    )
    for name, size, encoding in zip(names, sizes, schema.encodings, strict=True):
        if isinstance(size, bool) or size != encoding.size:
            raise ValueError(
                f"column {name!r} has the size {str(size)[:100]}, but its encoding "
                f"{encoding.text!r} has {encoding.size}"
            )
    return schema


def _column_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"column name {str(name)[:100]!r} is not text")
    name.encode()  # half a surrogate pair, which JSON can escape, is a ValueError
    return name


def sequence_of(value: Mapping[str, object], key: str) -> Sequence[object]:
    """Return a list from an index.

    Raises:
        ValueError: It is not a list.
        KeyError: It is missing.
    """
    found = value[key]
    if not isinstance(found, list):
        raise ValueError(f"{key} is not a list")  # noqa: TRY004 - the file's fault, not a type's
    return found
