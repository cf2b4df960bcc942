"""Encode and decode the stored index of WebDataset tars: their headers as columns.

``headrace.storage.source.stored_index_frame`` defines the form. There is a row per tar file, with
lists of its samples and members. The fingerprint beside them is that of the tar files, and must
match the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.shard.buffers import offsets_of, values_of
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
from headrace.storage.source.unchanged import check_unchanged
from headrace.storage.store.store import Store
from headrace.storage.webdataset.columns import MAX_COLUMNS, MAX_VALUE_BYTES
from headrace.storage.webdataset.dataset import WebDataset
from headrace.storage.webdataset.index import TarIndex, WebDatasetIndex, index_of

if TYPE_CHECKING:
    _Array = pa.Array[Any]  # pyarrow's stubs have these generic, pyarrow itself has not
    _Field = pa.Field[Any]


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.large_list(pa.field("item", kind, nullable=False))


_FIELDS: list[_Field] = [
    *ENTRY_FIELDS,
    pa.field("names", _list(pa.string()), nullable=False),
    pa.field("keys", _list(pa.string()), nullable=False),
    pa.field("member_counts", _list(pa.int32()), nullable=False),
    pa.field("columns", _list(pa.int32()), nullable=False),
    pa.field("offsets", _list(pa.int64()), nullable=False),
    pa.field("sizes", _list(pa.int64()), nullable=False),
]
_FORM = PackedForm(magic=b"HRWDIDX", version=2, schema=pa.schema(_FIELDS))


def encode_stored_index(index: WebDatasetIndex) -> bytes:
    """Return the bytes to store."""
    shards = index.shards
    columns: list[_Array] = [
        *entry_columns([shard.entry for shard in shards]),
        _lists([pa.array(shard.names, pa.string()) for shard in shards]),
        _lists([shard.keys for shard in shards]),
        _lists([pa.array(np.diff(s.first_members).astype(np.int32)) for s in shards]),
        _lists([pa.array(shard.columns.astype(np.int32)) for shard in shards]),
        _lists([pa.array(shard.offsets) for shard in shards]),
        _lists([pa.array(shard.sizes) for shard in shards]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=_FORM.schema)
    return pack(_FORM, IndexContents({"fingerprint": index.fingerprint}, batch))


def decode_stored_index(content: bytes, *, place: str) -> WebDatasetIndex:
    """Return a stored index.

    Args:
        content: The stored bytes.
        place: Its place, for errors.

    Raises:
        ManifestCorruptError: It is damaged, hostile, or of an unknown version.
    """
    with as_index_damage(place):
        packed = unpack(_FORM, content)
        index = index_of(_shards(packed.batch))
        stated = packed.facts.get("fingerprint")
        if index.fingerprint != stated:
            raise ValueError(f"fingerprint {index.fingerprint} found, {stated!s:.100} expected")
        return index


def open_by_index(index: WebDatasetIndex, files: Store) -> WebDataset:
    """Open tar files that have not changed since they were indexed; lists but does not read them.

    Args:
        index: The stored index.
        files: The store of the tar files, which then belongs to the dataset.

    Raises:
        ShardCorruptError: A file has changed; names it.
        ObjectNotFoundError: A file is missing; names it.
    """
    check_unchanged((shard.entry for shard in index.shards), files.list_entries(), url=files.url)
    return WebDataset(files, index)


def _lists(parts: Sequence[_Array]) -> _Array:
    starts = np.cumsum([0, *map(len, parts)])
    lists: _Array = pa.LargeListArray.from_arrays(pa.array(starts), pa.concat_arrays(parts))
    return lists


def _shards(batch: pa.RecordBatch) -> list[TarIndex]:
    lists = {
        name: _parts(cast("pa.LargeListArray[Any]", batch.column(name)))
        for name in _FORM.schema.names[len(ENTRY_FIELDS) :]
    }
    return [
        _checked(
            TarIndex(
                entry=entry,
                keys=cast("pa.StringArray", lists["keys"][at]),
                first_members=starts_of(_numbers(lists["member_counts"][at], np.int32)),
                columns=_numbers(lists["columns"][at], np.int32),
                offsets=_numbers(lists["offsets"][at], np.int64),
                sizes=_numbers(lists["sizes"][at], np.int64),
                names=tuple(map(str, lists["names"][at].to_pylist())),
            )
        )
        for at, entry in enumerate(entries_of(batch))
    ]


def _checked(shard: TarIndex) -> TarIndex:
    """Refuse values that no tar file can have, or that lie outside it.

    Raises:
        ValueError: A file has such values; names it.
    """
    member_count = len(shard.columns)
    is_whole = (
        len(shard.keys) == shard.sample_count
        and member_count == len(shard.offsets) == len(shard.sizes) == shard.first_members[-1]
        and len(shard.names) <= MAX_COLUMNS
        and bool(np.all(np.diff(shard.first_members) > 0))
    )
    ends = shard.offsets + shard.sizes
    if not is_whole or (
        member_count
        and (
            bool(np.any((shard.columns < 0) | (shard.columns >= len(shard.names))))
            or bool(np.any((shard.sizes < 0) | (shard.sizes > MAX_VALUE_BYTES)))
            or shard.offsets[0] < 0
            or bool(np.any(shard.offsets[1:] < ends[:-1]))
            or ends[-1] > shard.entry.stored_bytes
        )
    ):
        raise ValueError(f"file {shard.entry.name[:200]!r} has invalid members")
    return shard


def _parts(lists: pa.LargeListArray[Any]) -> list[_Array]:
    edges = offsets_of(lists).tolist()
    return [lists.values.slice(start, stop - start) for start, stop in pairwise(edges)]


def _numbers(array: _Array, kind: type[np.integer[Any]]) -> NDArray[np.int64]:
    return values_of(array, np.dtype(kind)).astype(np.int64)
