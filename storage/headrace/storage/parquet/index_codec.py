"""Encode and decode the stored index of Parquet files: their footers as columns.

``headrace.storage.source.stored_index_frame`` defines the form. There is a row per file, with lists
of its row groups and deleted rows, and a column for each constant column. The facts beside them are
the schemas, the version of a Delta table, and the fingerprint, which must match the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.parquet.index import (
    IndexedFile,
    ParquetIndex,
    fingerprint_of,
)
from headrace.storage.parquet.row_groups import MAX_ROW_GROUP_BYTES, ROW_GROUP_DTYPE
from headrace.storage.shard.types import schema_from_text, schema_to_text
from headrace.storage.source.ordinals import starts_of
from headrace.storage.source.stored_index_frame import (
    ENTRY_FIELDS,
    IndexContents,
    PackedForm,
    as_index_damage,
    entries_of,
    entry_columns,
    pack,
    unpack,
)

if TYPE_CHECKING:
    # pyarrow's stubs have these generic, pyarrow itself has not.
    Array = pa.Array[Any]
    Field = pa.Field[Any]

INDEX_VERSION = 2
_DIGEST_BYTES = 16
_GROUP = pa.struct(
    [
        pa.field("row_group", pa.int32(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in (ROW_GROUP_DTYPE.names or ())[1:]),
    ]
)
_FIELDS = (
    *ENTRY_FIELDS,
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
_FORM = PackedForm(
    magic=b"HRPQIDX",
    version=INDEX_VERSION,
    schema=pa.schema(_FIELDS),
    more=_CONSTANT,
    limit_bytes=8 << 30,
)


def encode_index(index: ParquetIndex) -> bytes:
    """Return the bytes to store."""
    constants = [field.with_name(_CONSTANT + field.name) for field in index.constants.schema]
    fields: list[Field] = [*_FIELDS, *constants]
    batch = pa.RecordBatch.from_arrays(
        [*_columns(index), *index.constants.columns], schema=pa.schema(fields)
    )
    facts = {
        "fingerprint": index.fingerprint,
        "schema": schema_to_text(index.schema),
        "physical": schema_to_text(index.physical),
        "table_version": index.table_version,
    }
    return pack(_FORM, IndexContents(facts, batch))


def decode_index(content: bytes, *, place: str) -> ParquetIndex:
    """Return a stored index, verified.

    Args:
        content: The stored bytes.
        place: Its place, for errors.

    Raises:
        ManifestCorruptError: It is damaged, hostile, or of an unknown version.
    """
    with as_index_damage(place):
        return _decode(content)


def _columns(index: ParquetIndex) -> list[Array]:
    gone = [index.deleted.get(i, np.empty(0, np.int64)) for i in range(len(index.files))]
    groups = pa.StructArray.from_arrays(
        [pa.array(np.ascontiguousarray(index.row_groups[field.name])) for field in _GROUP],
        fields=list(_GROUP),
    )
    return [
        *entry_columns([file.entry for file in index.files]),
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
    packed = unpack(_FORM, content)
    facts, batch = packed.facts, packed.batch
    constants = _constants(batch)
    files = _files(batch)
    row_groups = _row_groups(batch, files)
    deleted = _deleted(batch)
    schema = schema_from_text(facts["schema"])
    physical = schema_from_text(facts["physical"])
    found = fingerprint_of(
        schema=schema,
        physical=physical,
        files=files,
        constants=constants,
        deleted=deleted,
        row_groups=row_groups,
    )
    if found != facts["fingerprint"]:
        raise ValueError(f"fingerprint {str(facts['fingerprint'])[:100]!r} expected, {found} found")
    version = facts["table_version"]
    if version is not None and type(version) is not int:
        raise ValueError(f"version {str(version)[:100]} of the table is not a number")
    return ParquetIndex(
        schema=schema,
        physical=physical,
        table_version=version,
        files=files,
        constants=constants,
        deleted=deleted,
        row_groups=row_groups,
        fingerprint=found,
    )


def _constants(batch: pa.RecordBatch) -> pa.RecordBatch:
    stated = list(batch.schema)[len(_FIELDS) :]
    own = [field.with_name(field.name.removeprefix(_CONSTANT)) for field in stated]
    return pa.RecordBatch.from_arrays(batch.columns[len(_FIELDS) :], schema=pa.schema(own))


def _files(batch: pa.RecordBatch) -> tuple[IndexedFile, ...]:
    counts = np.diff(_list_column(batch, "row_groups").offsets.to_numpy())
    names = ("footer_bytes", "footer_digest", "row_group_count")
    columns = (batch.column(name).to_pylist() for name in names)
    rows = zip(entries_of(batch), *columns, counts.tolist(), strict=True)
    files = tuple(IndexedFile(*row) for row in rows)
    for file in files:
        if not 0 < file.footer_bytes < file.entry.stored_bytes or file.row_group_count < 0:
            raise ValueError(f"file {file.entry.name[:200]!r} has impossible sizes")
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
        raise ValueError(f"row group {int(np.argmax(is_bad))} of the index is impossible")
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
