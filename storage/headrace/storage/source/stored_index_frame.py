"""The codec of a stored index of one table: a header, and one ZSTD frame of an Arrow IPC file.

::

    bytes 0-6    the magic of the source
    byte 7       the version
    bytes 8-15   bytes of the Arrow IPC file, int64
    then         the file, of one record batch without compression, as one ZSTD frame

The whole is under the digest that ``headrace.json`` has of it; what is checked here is that a
file of another's making is refused and takes no more memory than it states.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.storage.shard.arrow_message import check_plain_file

MAX_PACKED_BYTES = 1 << 30
_MAGIC_BYTES = 7
_SIZE_BYTES = 8
_HEADER_BYTES = _MAGIC_BYTES + 1 + _SIZE_BYTES
_FACTS = "headrace.facts"


@dataclass(frozen=True, slots=True)
class PackedForm:
    """What the stored index of a source looks like.

    Attributes:
        magic: Seven bytes.
        version: Of the form.
        schema: Columns, none of which may hold nulls.
    """

    magic: bytes
    version: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """What a stored index holds.

    Attributes:
        facts: Small things that are not a column; JSON values.
        batch: The table.
    """

    facts: Mapping[str, Any]
    batch: pa.RecordBatch


def pack(form: PackedForm, packed: Packed) -> bytes:
    """Return the bytes to store."""
    metadata = {_FACTS: json.dumps(packed.facts)}
    batch = packed.batch.cast(form.schema).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    raw = sink.getvalue()
    size = raw.size.to_bytes(_SIZE_BYTES, "little")
    frame = pa.compress(raw, codec="zstd", asbytes=True)
    return b"".join((form.magic, bytes([form.version]), size, frame))


def unpack(form: PackedForm, content: bytes) -> Packed:
    """Return what was stored.

    Raises:
        ValueError: It is damaged, hostile, or of another form; says why. So does
            `pa.ArrowException`, and OSError.
    """
    if not content.startswith(form.magic) or len(content) < _HEADER_BYTES:
        raise ValueError(f"it begins with {content[:8]!r}, an index with {form.magic!r}")
    if content[_MAGIC_BYTES] != form.version:
        raise ValueError(
            f"version {content[_MAGIC_BYTES]} found, this headrace reads {form.version}; another "
            "headrace may read it"
        )
    size = int.from_bytes(content[_MAGIC_BYTES + 1 : _HEADER_BYTES], "little")
    if size > MAX_PACKED_BYTES:
        raise ValueError(f"a table of {size} bytes, at most {MAX_PACKED_BYTES} wanted")
    raw = pa.decompress(
        pa.py_buffer(content)[_HEADER_BYTES:], decompressed_size=size, codec="zstd", asbytes=True
    )
    check_plain_file(raw, limit_bytes=len(raw))
    reader = pa.ipc.open_file(pa.py_buffer(raw))
    if reader.num_record_batches != 1 or not reader.schema.equals(form.schema):
        raise ValueError(f"columns {str(reader.schema.names)[:200]} found, others wanted")
    batch = reader.get_batch(0)
    batch.validate(full=True)
    if any(column.null_count for column in batch.columns):
        raise ValueError("nulls found, none wanted")
    facts = json.loads((reader.schema.metadata or {}).get(_FACTS.encode(), b"null"))
    if not isinstance(facts, dict):
        raise ValueError("no facts beside the table")  # noqa: TRY004 - the file's fault, not a type's
    return Packed(facts, batch)
