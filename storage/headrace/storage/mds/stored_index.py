"""Encode and decode the stored index of an MDS dataset: ``index.json`` as columns.

``headrace.storage.source.stored_index_frame`` defines the form. There is a row per shard; columns
for stored files are empty if they equal those for uncompressed files. The facts beside them are the
state of ``index.json`` in its store, the schemas of the shards, and the fingerprint, which depends
only on ``index.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import ManifestCorruptError, ObjectNotFoundError
from headrace.storage.mds.dataset import MdsDataset
from headrace.storage.mds.index import MAX_INDEX_BYTES, Index, check_shards, decode_index
from headrace.storage.mds.shard_schema import schema_from_object, schema_object
from headrace.storage.shard.buffers import offsets_of, values_of
from headrace.storage.source.kinds import MDS_INDEX_NAME
from headrace.storage.source.source import Place
from headrace.storage.source.stored_index_frame import (
    IndexContents,
    PackedForm,
    as_index_damage,
    pack,
    unpack,
)
from headrace.storage.source.unchanged import check_unchanged
from headrace.storage.store.store import ObjectEntry, Store

if TYPE_CHECKING:
    _Array = pa.Array[Any]  # pyarrow's stubs have these generic, pyarrow itself has not
    _Field = pa.Field[Any]

_NUMBERS = ("sample_count", "raw_bytes", "stored_bytes")
_TEXTS = ("raw_name", "stored_name", "raw_hash", "stored_hash")
_FIELDS: list[_Field] = [
    pa.field("schema", pa.int32(), nullable=False),
    *(pa.field(name, pa.int64(), nullable=False) for name in _NUMBERS),
    *(pa.field(name, pa.string(), nullable=False) for name in _TEXTS),
]
_FORM = PackedForm(
    magic=b"HRMDIDX",
    version=3,
    schema=pa.schema(_FIELDS),
)


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """A parsed and stored ``index.json``.

    Attributes:
        entry: The file at the time of indexing.
        index: Its contents.
    """

    entry: ObjectEntry
    index: Index


def encode_stored_index(stored: StoredIndex) -> bytes:
    """Return the bytes to store."""
    index = stored.index
    facts = {
        "stored_bytes": stored.entry.stored_bytes,
        "version": stored.entry.version,
        "fingerprint": index.fingerprint,
        "schemas": [schema_object(schema) for schema in index.schemas],
    }
    is_same = index.stored_names.equals(index.raw_names)
    none = pa.array([""] * len(index.raw_names), pa.string())
    columns: list[_Array] = [
        pa.array(index.schema_ordinals),
        pa.array(index.sample_counts),
        pa.array(index.raw_bytes),
        pa.array(index.stored_bytes),
        index.raw_names,
        none if is_same else index.stored_names,
        index.raw_hashes,
        none if is_same else index.stored_hashes,
    ]
    return pack(
        _FORM, IndexContents(facts, pa.RecordBatch.from_arrays(columns, schema=_FORM.schema))
    )


def decode_stored_index(content: bytes, *, place: str) -> StoredIndex:
    """Return a stored index.

    Args:
        content: The stored bytes.
        place: Its place, for errors.

    Raises:
        ManifestCorruptError: It is damaged, hostile, or of an unknown version.
    """
    with as_index_damage(place):
        return _decode(content)


def stored_index_of(place: Place) -> tuple[Index, bytes]:
    """Return the index of a dataset, and the bytes to store for it.

    Raises:
        ManifestCorruptError: It is damaged.
        ShardCorruptError: It is being written right now.
    """
    entry = _entry(place.store)
    if entry.stored_bytes > MAX_INDEX_BYTES:
        raise ManifestCorruptError(
            f"{place.url}/{MDS_INDEX_NAME} has {entry.stored_bytes} bytes, at most "
            f"{MAX_INDEX_BYTES} expected",
            place=place.url,
        )
    content = place.store.read_entry(entry, offset=0, length=entry.stored_bytes)
    index = decode_index(content, place=f"{place.url}/{MDS_INDEX_NAME}")
    return index, encode_stored_index(StoredIndex(entry, index))


def open_by_index(
    stored: StoredIndex,
    store: Store,
    *,
    allow_pickle: bool,
    mixed_arrays: bool = False,
) -> MdsDataset:
    """Open a dataset whose ``index.json`` has not changed; reads only the file's state.

    Args:
        stored: The stored index.
        store: The store of the dataset, which then belongs to it.
        allow_pickle: Serve pickles, as bytes.
        mixed_arrays: See `MdsDataset`.

    Raises:
        ShardCorruptError: ``index.json`` has changed.
        ObjectNotFoundError: It is missing.
    """
    check_unchanged([stored.entry], [_entry(store)], url=store.url)
    return MdsDataset(store, stored.index, allow_pickle=allow_pickle, mixed_arrays=mixed_arrays)


def _entry(store: Store) -> ObjectEntry:
    entry = store.entry(MDS_INDEX_NAME)
    if entry is None:
        raise ObjectNotFoundError(
            f"{MDS_INDEX_NAME} is no longer in {store.url}; restore it, or store the index again "
            "with `headrace index`",
            url=store.url,
            name=MDS_INDEX_NAME,
        )
    return entry


def _decode(content: bytes) -> StoredIndex:
    packed = unpack(_FORM, content)
    facts = packed.facts
    stored_bytes, version = facts["stored_bytes"], facts["version"]
    if type(stored_bytes) is not int or not 0 < stored_bytes <= MAX_INDEX_BYTES:
        raise ValueError(f"{MDS_INDEX_NAME} of {str(stored_bytes)[:100]} bytes")
    if not isinstance(version, str):
        raise TypeError(f"version {str(version)[:100]} is not text")
    index = _index(packed.batch, facts)
    check_shards(index)
    return StoredIndex(ObjectEntry(MDS_INDEX_NAME, stored_bytes, version), index)


def _index(batch: pa.RecordBatch, facts: Mapping[str, Any]) -> Index:
    raw_names, stored_names, raw_hashes, stored_hashes = (
        cast("pa.StringArray", batch.column(name)) for name in _TEXTS
    )
    is_same = offsets_of(stored_names)[-1] == 0
    return Index(
        fingerprint=str(facts["fingerprint"]),
        schemas=tuple(schema_from_object(value) for value in facts["schemas"]),
        schema_ordinals=values_of(batch.column("schema"), np.dtype(np.int32)),
        sample_counts=_numbers(batch, "sample_count"),
        raw_bytes=_numbers(batch, "raw_bytes"),
        stored_bytes=_numbers(batch, "stored_bytes"),
        raw_names=raw_names,
        stored_names=raw_names if is_same else stored_names,
        raw_hashes=raw_hashes,
        stored_hashes=raw_hashes if is_same else stored_hashes,
    )


def _numbers(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = values_of(batch.column(name), np.dtype(np.int64))
    return numbers
