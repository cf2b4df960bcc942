"""The codec of the stored index of any source: a header, and one ZSTD frame of an Arrow IPC file.

::

    bytes 0-6    the magic of the source
    byte 7       the version
    bytes 8-23   BLAKE2b-128 of all that follows
    bytes 24-31  bytes of the Arrow IPC file, int64
    then         the file, of one record batch without compression, as one ZSTD frame

The checks here refuse files that other programs made, and limit memory to the size that the file
states.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import ManifestCorruptError, UnsupportedColumnError
from headrace.storage.shard.arrow_message import check_plain_file
from headrace.storage.store.store import ObjectEntry

_MAGIC_BYTES = 7
_SIZE_BYTES = 8
_DIGEST_BYTES = 16
_SEALED = _MAGIC_BYTES + 1 + _DIGEST_BYTES
_HEADER_BYTES = _SEALED + _SIZE_BYTES
_FACTS = "headrace.facts"


if TYPE_CHECKING:
    # pyarrow's stubs have these generic, pyarrow itself has not.
    _Array = pa.Array[Any]
    _Field = pa.Field[Any]

ENTRY_FIELDS: tuple[_Field, ...] = (
    pa.field("name", pa.string(), nullable=False),
    pa.field("stored_bytes", pa.int64(), nullable=False),
    pa.field("version", pa.string(), nullable=False),
)
"""The columns of an index for files, with their sizes and versions in the store."""


def entry_columns(entries: Sequence[ObjectEntry]) -> list[_Array]:
    """Return files as `ENTRY_FIELDS`."""
    return [
        pa.array([entry.name for entry in entries], pa.string()),
        pa.array([entry.stored_bytes for entry in entries], pa.int64()),
        pa.array([entry.version for entry in entries], pa.string()),
    ]


def entries_of(batch: pa.RecordBatch) -> list[ObjectEntry]:
    """Return the files of an index that has `ENTRY_FIELDS`."""
    columns = (batch.column(field.name).to_pylist() for field in ENTRY_FIELDS)
    return [ObjectEntry(*row) for row in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True)
class PackedForm:
    """The form of a source's stored index.

    Attributes:
        magic: Seven bytes.
        version: The version of the form.
        schema: The columns, none of which may contain nulls.
        more: The prefix of the names of further columns, or `None` if there are none.
        limit_bytes: The maximum size of the Arrow IPC file.
    """

    magic: bytes
    version: int
    schema: pa.Schema
    more: str | None = None
    limit_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class IndexContents:
    """The contents of a stored index.

    Attributes:
        facts: Small values that are not columns, as JSON.
        batch: The table.
    """

    facts: Mapping[str, Any]
    batch: pa.RecordBatch


def pack(form: PackedForm, packed: IndexContents) -> bytes:
    """Return the bytes to store."""
    batch = packed.batch.replace_schema_metadata({_FACTS: json.dumps(packed.facts)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    raw = sink.getvalue()
    size = raw.size.to_bytes(_SIZE_BYTES, "little")
    body = size + pa.compress(raw, codec="zstd", asbytes=True)
    return b"".join((form.magic, bytes([form.version]), _digest(body), body))


def unpack(form: PackedForm, content: bytes) -> IndexContents:
    """Return the contents of a stored index.

    Raises:
        ValueError: It is damaged, hostile, or has another form; the message says why.
            `pa.ArrowException` and OSError mean the same.
    """
    if not content.startswith(form.magic) or len(content) < _HEADER_BYTES:
        raise ValueError(f"it starts with {content[:8]!r}, but an index starts with {form.magic!r}")
    if content[_MAGIC_BYTES] != form.version:
        raise ValueError(
            f"version {content[_MAGIC_BYTES]} found, but this headrace reads {form.version}; "
            "another headrace may be able to read it"
        )
    stated, found = content[_MAGIC_BYTES + 1 : _SEALED], _digest(memoryview(content)[_SEALED:])
    if found != stated:
        raise ValueError(f"digest {found.hex()} found, {stated.hex()} expected")
    size = int.from_bytes(content[_SEALED:_HEADER_BYTES], "little")
    if size > form.limit_bytes:
        raise ValueError(f"a table of {size} bytes found, at most {form.limit_bytes} expected")
    raw = pa.decompress(
        pa.py_buffer(content)[_HEADER_BYTES:], decompressed_size=size, codec="zstd", asbytes=True
    )
    check_plain_file(raw, limit_bytes=len(raw))
    reader = pa.ipc.open_file(pa.py_buffer(raw))
    if reader.num_record_batches != 1 or not _is_of(form, reader.schema):
        raise ValueError(
            f"columns {str(reader.schema.names)[:200]} found, {form.schema.names} expected"
        )
    batch = reader.get_batch(0)
    batch.validate(full=True)
    if any(column.null_count for column in batch.columns[: len(form.schema)]):
        raise ValueError("nulls found, none expected")
    facts = json.loads((reader.schema.metadata or {}).get(_FACTS.encode(), b"null"))
    if not isinstance(facts, dict):
        raise ValueError("the metadata of the table has no facts")  # noqa: TRY004 - the file's fault, not a type's
    return IndexContents(facts, batch)


def _is_of(form: PackedForm, schema: pa.Schema) -> bool:
    fields, count = list(schema), len(form.schema)
    more = fields[count:]
    return pa.schema(fields[:count]).equals(form.schema) and (
        not more
        or (form.more is not None and all(field.name.startswith(form.more) for field in more))
    )


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


@contextlib.contextmanager
def as_index_damage(place: str) -> Iterator[None]:
    """Raise errors of decoding a stored index as one that says that it is damaged, and what to do.

    Args:
        place: Where the index is.

    Raises:
        ManifestCorruptError: It is damaged, hostile, or of an unknown version.
    """
    try:
        yield
    except (
        pa.ArrowException,
        UnsupportedColumnError,
        KeyError,
        OSError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise ManifestCorruptError(
            f"index {place}: {error}; store it again with `headrace index`", place=place
        ) from error
