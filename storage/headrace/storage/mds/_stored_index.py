"""The codec of a stored index: which ``index.json`` it was, and its text, compressed.

::

    bytes 0-7    HRMDIDX and the version, one byte
    bytes 8-11   length of the next part, int32
    then         a JSON object: stored_bytes and version of index.json as its store states them
    then         index.json, one ZSTD frame
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import ManifestCorruptError, ObjectNotFoundError
from headrace.storage._options import StoreOptions
from headrace.storage._source import Place
from headrace.storage._store import open_store
from headrace.storage.mds._dataset import MdsDataset
from headrace.storage.mds._index import INDEX_NAME, MAX_INDEX_BYTES, Index, decode_index
from headrace.storage.parquet._objects import FileEntry, FileStore, open_files

INDEX_VERSION = 1
_MAGIC = b"HRMDIDX"
_HEADER_BYTES = len(_MAGIC) + 1 + 4
_MAX_STATE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """An ``index.json`` that was stored elsewhere.

    Attributes:
        entry: The file as it was when it was indexed.
        content: What it held.
    """

    entry: FileEntry
    content: bytes


def encode_stored_index(index: StoredIndex) -> bytes:
    """Return the bytes to store."""
    state = json.dumps(
        {"stored_bytes": index.entry.stored_bytes, "version": index.entry.version}
    ).encode()
    packed = pa.compress(index.content, codec="zstd", asbytes=True)
    return b"".join(
        (_MAGIC, bytes([INDEX_VERSION]), len(state).to_bytes(4, "little"), state, packed)
    )


def decode_stored_index(content: bytes, *, place: str) -> StoredIndex:
    """Return a stored index.

    Args:
        content: What was stored.
        place: Where, for errors.

    Raises:
        ManifestCorruptError: It is damaged, hostile, or of an unknown version.
    """
    try:
        return _decode(content)
    except (pa.ArrowException, KeyError, OSError, TypeError, ValueError, RecursionError) as error:
        raise ManifestCorruptError(
            f"index {place}: {error}; store it again with `headrace index`", place=place
        ) from error


def stored_index_of(place: Place) -> tuple[Index, bytes]:
    """Return the index of a dataset, and the bytes to store of it.

    Raises:
        ManifestCorruptError: It is damaged.
        ShardCorruptError: It is being written right now.
    """
    files = open_files(place.url, options=place.options)
    try:
        entry = _entry(files, place.url)
        if entry.stored_bytes > MAX_INDEX_BYTES:
            raise ManifestCorruptError(
                f"{place.url}/{INDEX_NAME} has {entry.stored_bytes} bytes, at most "
                f"{MAX_INDEX_BYTES} wanted",
                place=place.url,
            )
        content = files.read(entry, offset=0, length=entry.stored_bytes)
    finally:
        files.close()
    index = decode_index(content, place=f"{place.url}/{INDEX_NAME}")
    return index, encode_stored_index(StoredIndex(entry, content))


def open_by_index(
    stored: StoredIndex, target: str, *, options: StoreOptions, where: str, allow_pickle: bool
) -> MdsDataset:
    """Open a dataset whose ``index.json`` still is as it was stored; asks for its state alone.

    Args:
        stored: What was stored.
        target: URL of the dataset.
        options: How to reach it.
        where: Where the index is stored, for errors.
        allow_pickle: Serve pickles, as bytes.

    Raises:
        ShardCorruptError: ``index.json`` has changed.
        ObjectNotFoundError: It is gone.
        ManifestCorruptError: What was stored is damaged.
    """
    files = open_files(target, options=options)
    try:
        entry = _entry(files, target)
    finally:
        files.close()
    if entry != stored.entry:
        raise stored.entry.changed(entry, url=target)
    index = decode_index(stored.content, place=where)
    store = open_store(target, options=options)
    try:
        return MdsDataset(store, index, allow_pickle=allow_pickle)
    except BaseException:
        store.close()
        raise


def _entry(files: FileStore, url: str) -> FileEntry:
    entry = files.entry(INDEX_NAME)
    if entry is None:
        raise ObjectNotFoundError(
            f"{INDEX_NAME} is gone from {url}; restore it, or store the index again with "
            "`headrace index`",
            url=url,
            name=INDEX_NAME,
        )
    return entry


def _decode(content: bytes) -> StoredIndex:
    if not content.startswith(_MAGIC) or len(content) < _HEADER_BYTES:
        raise ValueError(f"it begins with {content[:8]!r}, an index with {_MAGIC!r}")
    if content[len(_MAGIC)] != INDEX_VERSION:
        raise ValueError(
            f"version {content[len(_MAGIC)]} found, this headrace reads {INDEX_VERSION}; a newer "
            "headrace may read it"
        )
    state_bytes = int.from_bytes(content[len(_MAGIC) + 1 : _HEADER_BYTES], "little")
    if state_bytes > _MAX_STATE_BYTES:
        raise ValueError(f"a state of {state_bytes} bytes")
    body = _HEADER_BYTES + state_bytes
    state = json.loads(content[_HEADER_BYTES:body])
    stored_bytes, version = state["stored_bytes"], state["version"]
    if type(stored_bytes) is not int or not 0 < stored_bytes <= MAX_INDEX_BYTES:
        raise ValueError(f"{INDEX_NAME} of {str(stored_bytes)[:100]} bytes")
    if not isinstance(version, str):
        raise TypeError(f"version {str(version)[:100]} is no text")
    packed = pa.py_buffer(content)[body:]
    # One byte more than wanted would show a frame that is longer; Arrow refuses it by itself.
    raw = pa.decompress(packed, decompressed_size=stored_bytes, codec="zstd", asbytes=True)
    return StoredIndex(FileEntry(INDEX_NAME, stored_bytes, version), raw)
