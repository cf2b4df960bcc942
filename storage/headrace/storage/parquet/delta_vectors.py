"""Read which rows of a Delta table's files are deleted, from its log and its deletion vectors.

`deltalake` reads them too, but refuses to for tables with other features that it reads.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ManifestCorruptError
from headrace.storage.parquet.row_vectors import FRAME_BYTES, framed_rows, vector_rows
from headrace.storage.store.outer_store import outer_name
from headrace.storage.store.store import Store

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES = {character: value for value, character in enumerate(_Z85)}
_NAME_CHARACTERS = 20  # encode the 16 bytes of a UUID
_THREADS = 16


def deleted_rows(
    files: Store, vectors: Mapping[str, Mapping[str, Any]], *, prefixes: Sequence[str] = ()
) -> dict[str, NDArray[np.int64]]:
    """Return the deleted rows, ascending, by the names of data files.

    Args:
        files: The store of the table.
        vectors: What the log says of the vector of each data file that has one.
        prefixes: Of the operator, below which vectors may lie.

    Raises:
        ManifestCorruptError: A vector is damaged.
        ObjectNotFoundError: One is missing.
    """
    with ThreadPoolExecutor(_THREADS, "headrace-delta") as pool:
        rows = pool.map(lambda name: _rows(files, name, vectors[name], prefixes), vectors)
        return dict(zip(vectors, rows, strict=True))


def _rows(
    files: Store, name: str, said: Mapping[str, Any], prefixes: Sequence[str]
) -> NDArray[np.int64]:
    try:
        rows = _decoded(files, said, prefixes)
        count = int(said["cardinality"])
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise _damage(files, name, str(error)) from error
    if len(rows) != count:
        raise _damage(files, name, f"it has {len(rows)} rows, and the log says {count}")
    return rows


def _decoded(files: Store, said: Mapping[str, Any], prefixes: Sequence[str]) -> NDArray[np.int64]:
    text, size = str(said["pathOrInlineDv"]), int(said["sizeInBytes"])
    if said["storageType"] == "i":
        return vector_rows(_bytes_of(text)[:size])
    name = outer_name(unquote(text), prefixes) if said["storageType"] == "p" else _file(text)
    if name is None:
        raise ValueError("it lies elsewhere")
    offset = int(said.get("offset") or 0)
    return framed_rows(files.read(name, offset=offset, length=size + FRAME_BYTES))


def _damage(files: Store, name: str, why: str) -> ManifestCorruptError:
    return ManifestCorruptError(
        f"the log of the Delta table {files.url} has a deletion vector of {name} that cannot be "
        f"read: {why}; repair the table, or give an earlier version",
        place=f"{files.url}/{name}",
    )


def _file(text: str) -> str:
    """Return the name of a file of vectors; letters before the 20 of its id are its folder."""
    folder, name = text[:-_NAME_CHARACTERS], UUID(bytes=_bytes_of(text[-_NAME_CHARACTERS:]))
    return f"{folder}/deletion_vector_{name}.bin".lstrip("/")


def _bytes_of(text: str) -> bytes:
    """Decode Z85 (ZeroMQ's RFC 32): five characters for four bytes."""
    numbers = [_VALUES[character] for character in text]
    values = [0] * (len(numbers) // 5)
    for place in range(5):
        values = [85 * value + one for value, one in zip(values, numbers[place::5], strict=True)]
    return struct.pack(f">{len(values)}I", *values)
