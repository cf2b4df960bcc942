"""The index of a Parquet dataset's files, and the fingerprint that identifies it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.parquet.field_ids import ids_text
from headrace.storage.shard.types import schema_texts
from headrace.storage.source.ordinals import starts_of
from headrace.storage.store.store import ObjectEntry

_PREFIX = b"headrace parquet v1\n"
_DIGEST_BYTES = 16
_CANONICAL_GROUP = np.dtype([("sample_count", "<i8"), ("raw_bytes", "<i8")])


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """One file at the time of indexing.

    Attributes:
        entry: Its name, size and version.
        footer_bytes: The length of its footer.
        footer_digest: BLAKE2b-128 of its footer.
        row_group_count: The number of row groups, including those without samples.
        block_count: The number of row groups with samples.
    """

    entry: ObjectEntry
    footer_bytes: int
    footer_digest: bytes
    row_group_count: int
    block_count: int


@dataclass(frozen=True, slots=True, eq=False)
class ParquetIndex:
    """All that opening a dataset reads from its files; `encode_index` stores it.

    Attributes:
        schema: The columns as readers see them.
        physical: The same columns with the files' names.
        table_version: The version of the Delta table, or `None` without a Delta table.
        files: The files in the order of their samples.
        constants: Columns with a constant value per file, one row per file.
        deleted: Deleted rows of a file, ascending, by ordinal of the file.
        row_groups: ``(blocks,)`` of `ROW_GROUP_DTYPE`, file after file.
        fingerprint: 32 hexadecimal digits.
    """

    schema: pa.Schema
    physical: pa.Schema
    table_version: int | None
    files: tuple[IndexedFile, ...]
    constants: pa.RecordBatch
    deleted: Mapping[int, NDArray[np.int64]]
    row_groups: NDArray[np.void]
    fingerprint: str

    @property
    def block_starts(self) -> NDArray[np.int64]:
        """Return the first block of each file, and the number of blocks, ``(files + 1,)``."""
        return starts_of([file.block_count for file in self.files])


def fingerprint_of(
    *,
    schema: pa.Schema,
    physical: pa.Schema,
    files: tuple[IndexedFile, ...],
    constants: pa.RecordBatch,
    deleted: Mapping[int, NDArray[np.int64]],
    row_groups: NDArray[np.void],
) -> str:
    """Return the fingerprint, 32 hexadecimal digits: BLAKE2b-128 over canonical rows.

    The hash runs over the prefix ``headrace parquet v1`` and a line feed; the length and bytes of
    the JSON text of the served columns; if files have other names for them, or ids, the JSON text
    of those, with its length; the number of files; and for each file its name, size,
    entity tag (empty where the store has none), the digest of its footer, the JSON text of its
    constant columns, its number of row groups, the samples and raw bytes of those that hold
    samples, and its deleted rows. Texts and lists have their length before them; numbers are
    little-endian 64-bit integers.
    """
    digest = hashlib.blake2b(_PREFIX, digest_size=_DIGEST_BYTES)
    digest.update(_text(_json(schema_texts(schema))) + _mapping(schema, physical))
    digest.update(_number(len(files)))
    groups = np.empty(len(row_groups), _CANONICAL_GROUP)
    for name in _CANONICAL_GROUP.names or ():
        groups[name] = row_groups[name]
    starts = starts_of([file.block_count for file in files])
    values = _constant_texts(constants, len(files))
    own = memoryview(groups.tobytes())
    size = groups.dtype.itemsize
    for ordinal, file in enumerate(files):
        start, stop = int(starts[ordinal]), int(starts[ordinal + 1])
        gone = deleted[ordinal].astype("<i8").tobytes() if ordinal in deleted else b""
        digest.update(_file_row(file) + values[ordinal])
        digest.update(_number(file.row_group_count) + _number(stop - start))
        digest.update(own[start * size : stop * size])
        digest.update(_number(len(gone) // 8) + gone)
    return digest.hexdigest()


def _mapping(schema: pa.Schema, physical: pa.Schema) -> bytes:
    """Return which columns of files are served, unless they have the same names."""
    served, stored = ([row[:2] for row in schema_texts(each)] for each in (schema, physical))
    ids = ids_text(physical)
    return _text(_json([stored, ids])) if ids or stored != served else b""


def _constant_texts(constants: pa.RecordBatch, count: int) -> list[bytes]:
    if not constants.num_columns:
        return [_text(_json({}))] * count
    return [_text(_json(row)) for row in constants.to_pylist()]


def _file_row(file: IndexedFile) -> bytes:
    entry = file.entry
    return b"".join(
        (
            _text(entry.name.encode(errors="surrogateescape")),
            _number(entry.stored_bytes),
            _text(entry.content_version.encode()),
            file.footer_digest,
        )
    )


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, default=str).encode()


def _text(value: bytes) -> bytes:
    return _number(len(value)) + value


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")
