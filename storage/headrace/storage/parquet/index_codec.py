"""The codec of a stored index: a header with a digest, then an Arrow IPC file, one row a file.

::

    bytes 0-7    HRPQIDX and the version, one byte
    bytes 8-23   BLAKE2b-128 of all that follows
    bytes 24-    an Arrow IPC file of one record batch
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import ManifestCorruptError, UnsupportedColumnError
from headrace.storage.objects.objects import FileEntry
from headrace.storage.parquet.index import (
    IndexedFile,
    ParquetIndex,
    fingerprint_of,
    starts_of,
)
from headrace.storage.parquet.row_groups import MAX_ROW_GROUP_BYTES, ROW_GROUP_DTYPE

if TYPE_CHECKING:
    # pyarrow's stubs have these generic, pyarrow itself has not.
    Array = pa.Array[Any]
    Field = pa.Field[Any]

INDEX_VERSION = 1
MAX_INDEX_BYTES = 8 << 30
_MAGIC = b"HRPQIDX"
_DIGEST_BYTES = 16
_HEADER_BYTES = len(_MAGIC) + 1 + _DIGEST_BYTES
_GROUP = pa.struct(
    [
        pa.field("row_group", pa.int32(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in (ROW_GROUP_DTYPE.names or ())[1:]),
    ]
)
_FIELDS = (
    pa.field("name", pa.string(), nullable=False),
    pa.field("stored_bytes", pa.int64(), nullable=False),
    pa.field("version", pa.string(), nullable=False),
    pa.field("footer_bytes", pa.int64(), nullable=False),
    pa.field("footer_digest", pa.binary(_DIGEST_BYTES), nullable=False),
    pa.field("row_group_count", pa.int64(), nullable=False),
    pa.field("row_groups", pa.large_list(pa.field("item", _GROUP, nullable=False)), nullable=False),
    pa.field(
        "deleted",
        pa.large_list(pa.field("item", pa.int64(), nullable=False)),
        nullable=False,
    ),
)
_CONSTANT = "partition:"  # prefix of the names of the constant columns, which come last
_KEYS = ("headrace.fingerprint", "headrace.schema", "headrace.physical", "headrace.table_version")


def encode_index(index: ParquetIndex) -> bytes:
    """Return the bytes to store."""
    schema = _stored_schema(index)
    batch = pa.RecordBatch.from_arrays([*_columns(index), *index.constants.columns], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)
    body = sink.getvalue()
    digest = hashlib.blake2b(memoryview(body), digest_size=_DIGEST_BYTES).digest()
    return b"".join((_MAGIC, bytes([INDEX_VERSION]), digest, memoryview(body)))


def decode_index(content: bytes, *, place: str) -> ParquetIndex:
    """Return a stored index, verified.

    Args:
        content: What was stored.
        place: Where, for errors.

    Raises:
        ManifestCorruptError: It is damaged, hostile, or of an unknown version.
    """
    try:
        return _decode(content)
    except (_DamageError, pa.ArrowException, UnsupportedColumnError, OSError, ValueError) as error:
        raise ManifestCorruptError(
            f"index {place}: {error}; store it again with `headrace index`", place=place
        ) from error


class _DamageError(Exception):
    """What is wrong with an index; the caller knows where."""


def _stored_schema(index: ParquetIndex) -> pa.Schema:
    version = "" if index.table_version is None else str(index.table_version)
    metadata: dict[bytes | str, bytes | str] = {
        "headrace.fingerprint": index.fingerprint,
        "headrace.schema": _schema_text(index.schema),
        "headrace.physical": _schema_text(index.physical),
        "headrace.table_version": version,
    }
    constants = [field.with_name(_CONSTANT + field.name) for field in index.constants.schema]
    fields: list[Field] = [*_FIELDS, *constants]
    return pa.schema(fields, metadata=metadata)


def _columns(index: ParquetIndex) -> list[Array]:
    entries = [file.entry for file in index.files]
    gone = [index.deleted.get(i, np.empty(0, np.int64)) for i in range(len(entries))]
    groups = pa.StructArray.from_arrays(
        [pa.array(np.ascontiguousarray(index.row_groups[field.name])) for field in _GROUP],
        fields=list(_GROUP),
    )
    return [
        pa.array([entry.name for entry in entries], pa.string()),
        pa.array([entry.stored_bytes for entry in entries], pa.int64()),
        pa.array([entry.version for entry in entries], pa.string()),
        pa.array([file.footer_bytes for file in index.files], pa.int64()),
        pa.array([file.footer_digest for file in index.files], pa.binary(_DIGEST_BYTES)),
        pa.array([file.row_group_count for file in index.files], pa.int64()),
        _lists(index.block_starts, groups, "row_groups"),
        _lists(
            starts_of([len(rows) for rows in gone]),
            pa.array(np.concatenate([np.empty(0, np.int64), *gone])),
            "deleted",
        ),
    ]


def _lists(starts: NDArray[np.int64], items: Array, name: str) -> Array:
    kind: pa.DataType = pa.schema(_FIELDS).field(name).type
    offsets = pa.array(starts, pa.int64())
    lists: Array = pa.LargeListArray.from_arrays(offsets, items, type=kind)
    return lists


def _decode(content: bytes) -> ParquetIndex:
    reader = pa.ipc.open_file(pa.py_buffer(_body(content)))
    if reader.num_record_batches != 1:
        raise _DamageError(f"{reader.num_record_batches} record batches found, 1 wanted")
    batch = reader.get_batch(0)
    batch.validate(full=True)
    metadata = _metadata(batch.schema)
    constants = _constants(batch)
    files = _files(batch)
    row_groups = _row_groups(batch, files)
    deleted = _deleted(batch)
    schema = _schema_of(metadata["headrace.schema"])
    found = fingerprint_of(
        schema=schema, files=files, constants=constants, deleted=deleted, row_groups=row_groups
    )
    if found != metadata["headrace.fingerprint"]:
        raise _DamageError(
            f"fingerprint {metadata['headrace.fingerprint'][:100]!r} stated, {found} found"
        )
    version = metadata["headrace.table_version"]
    return ParquetIndex(
        schema=schema,
        physical=_schema_of(metadata["headrace.physical"]),
        table_version=int(version) if version else None,
        files=files,
        constants=constants,
        deleted=deleted,
        row_groups=row_groups,
        fingerprint=found,
    )


def _body(content: bytes) -> memoryview:
    if not content.startswith(_MAGIC) or len(content) < _HEADER_BYTES:
        raise _DamageError(f"it begins with {content[:8]!r}, an index with {_MAGIC!r}")
    version = content[len(_MAGIC)]
    if version != INDEX_VERSION:
        raise _DamageError(
            f"version {version} found, this headrace reads {INDEX_VERSION}; a newer headrace may "
            "read it"
        )
    if len(content) > MAX_INDEX_BYTES:
        raise _DamageError(f"{len(content)} bytes found, at most {MAX_INDEX_BYTES} wanted")
    body = memoryview(content)[_HEADER_BYTES:]
    stated = content[len(_MAGIC) + 1 : _HEADER_BYTES]
    digest = hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()
    if digest != stated:
        raise _DamageError(f"digest {digest.hex()} found, {stated.hex()} stated")
    return body


def _metadata(schema: pa.Schema) -> Mapping[str, str]:
    found = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    missing = [key for key in _KEYS if key not in found]
    if missing:
        raise _DamageError(f"no metadata {', '.join(missing)}")
    return found


def _constants(batch: pa.RecordBatch) -> pa.RecordBatch:
    fields = list(batch.schema)
    wanted = pa.schema(_FIELDS)
    if not pa.schema(fields[: len(wanted)]).equals(wanted):
        raise _DamageError(f"columns {batch.schema.names} found, {wanted.names} wanted")
    if any(column.null_count for column in batch.columns[: len(wanted)]):
        raise _DamageError("nulls found, none wanted")
    own = [field.with_name(field.name.removeprefix(_CONSTANT)) for field in fields[len(wanted) :]]
    return pa.RecordBatch.from_arrays(batch.columns[len(wanted) :], schema=pa.schema(own))


def _files(batch: pa.RecordBatch) -> tuple[IndexedFile, ...]:
    counts = np.diff(_list_column(batch, "row_groups").offsets.to_numpy())
    names = ("name", "stored_bytes", "version", "footer_bytes", "footer_digest", "row_group_count")
    rows = zip(*(batch.column(name).to_pylist() for name in names), counts.tolist(), strict=True)
    files = tuple(
        IndexedFile(FileEntry(name, size, version), footer, digest, groups, blocks)
        for name, size, version, footer, digest, groups, blocks in rows
    )
    for file in files:
        if not 0 < file.footer_bytes < file.entry.stored_bytes or file.row_group_count < 0:
            raise _DamageError(f"file {file.entry.name[:200]!r} has sizes that cannot be")
    return files


def _row_groups(batch: pa.RecordBatch, files: tuple[IndexedFile, ...]) -> NDArray[np.void]:
    items = cast("pa.StructArray", _list_column(batch, "row_groups").flatten())
    groups = np.empty(len(items), ROW_GROUP_DTYPE)
    for name, column in zip(ROW_GROUP_DTYPE.names or (), items.flatten(), strict=True):
        groups[name] = column.to_numpy(zero_copy_only=True)
    sizes = np.repeat([f.entry.stored_bytes for f in files], [f.block_count for f in files])
    groups_of = np.repeat([f.row_group_count for f in files], [f.block_count for f in files])
    is_bad = (
        (groups["row_group"] < 0)
        | (groups["row_group"] >= groups_of)
        | (groups["sample_count"] < 1)
        | (groups["sample_count"] > groups["row_count"])
        | (groups["row_count"] > MAX_ROW_GROUP_BYTES)
        | (groups["first_row"] < 0)
        | (groups["offset"] < 0)
        | (groups["stored_bytes"] < 0)
        | (groups["stored_bytes"] > sizes)
        | (groups["raw_bytes"] < 0)
        | (groups["raw_bytes"] > MAX_ROW_GROUP_BYTES)
    )
    if is_bad.any():
        raise _DamageError(f"row group {int(np.argmax(is_bad))} of the index cannot be")
    return groups


def _deleted(batch: pa.RecordBatch) -> Mapping[int, NDArray[np.int64]]:
    lists = _list_column(batch, "deleted")
    starts = lists.offsets.to_numpy()
    rows = lists.values.to_numpy()
    return {
        int(file): rows[starts[file] : starts[file + 1]] for file in np.flatnonzero(np.diff(starts))
    }


def _list_column(batch: pa.RecordBatch, name: str) -> pa.LargeListArray[Any]:
    return cast("pa.LargeListArray[Any]", batch.column(name))


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
