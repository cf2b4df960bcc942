"""Read which rows of data files are deleted: positional deletes and deletion vectors."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.errors import ConfigurationError, ManifestCorruptError
from headrace.storage.iceberg.locations import Files
from headrace.storage.parquet.row_vectors import framed_rows

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

_PATH, _ROW = "file_path", "pos"
_PUFFIN = b"PFA1"
_THREADS = 16

_Rows = NDArray[np.int64]


def deleted_rows(
    files: Files, deletes: Mapping[str, Iterable[DataFile]], *, url: str
) -> dict[str, _Rows]:
    """Return the deleted rows of data files.

    Args:
        files: The files of the table.
        deletes: The files of deletes that apply to each data file, by its name.
        url: The URL of the table, for errors.

    Returns:
        Ascending rows by the name of the data file, only where there are any.

    Raises:
        ConfigurationError: They are of a kind that is not supported.
        ManifestCorruptError: One is damaged.
        ObjectNotFoundError: One is missing.
    """
    chosen = {delete.file_path: delete for each in deletes.values() for delete in each}
    with ThreadPoolExecutor(_THREADS, "headrace-deletes") as pool:
        contents = pool.map(lambda one: _read(files, one, url), chosen.values())
        paths = dict(zip(chosen, contents, strict=True))
    found = {}
    for name, applied in deletes.items():
        rows = [paths[delete.file_path].get(name, np.empty(0, np.int64)) for delete in applied]
        together = np.unique(np.concatenate([np.empty(0, np.int64), *rows]))
        if len(together):
            found[name] = together
    return found


def _read(files: Files, delete: DataFile, url: str) -> dict[str, _Rows]:
    """Return the rows that one file of deletes names, by the names of data files."""
    kind = str(delete.file_format).rpartition(".")[2]
    readers = {"PARQUET": _positions, "PUFFIN": _vectors}
    if kind not in readers:
        raise ConfigurationError(
            f"{url} has deletes in {delete.file_path}, a file of {kind}, which headrace does not "
            "read; rewrite the table (CALL system.rewrite_data_files)",
            url=url,
        )
    content = files.read(delete.file_path)
    if len(content) != delete.file_size_in_bytes:
        raise _damage(delete, f"{delete.file_size_in_bytes} bytes expected, {len(content)} found")
    try:
        named = list(readers[kind](content))
    except (pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
        raise _damage(delete, f"{type(error).__name__}: {error}") from error
    found: dict[str, list[_Rows]] = {}
    for path, rows in named:
        found.setdefault(files.name(path), []).append(rows)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _positions(content: bytes) -> Iterator[tuple[str, _Rows]]:
    table = pq.read_table(io.BytesIO(content), columns=[_PATH, _ROW])
    paths = table.column(_PATH).cast(pa.string()).combine_chunks().dictionary_encode()
    codes = paths.indices.to_numpy(zero_copy_only=False)
    rows = table.column(_ROW).to_numpy().astype(np.int64)
    if table.column(_PATH).null_count or table.column(_ROW).null_count or (rows < 0).any():
        raise ValueError("a row without a path or a position")
    for code, path in enumerate(paths.dictionary.to_pylist()):
        yield str(path), rows[codes == code]


def _vectors(content: bytes) -> Iterator[tuple[str, _Rows]]:
    """Yield the deletion vectors of a Puffin file.

    Source: Iceberg's Puffin specification, ``deletion-vector-v1``. pyiceberg 0.12 checks neither
    lengths nor checksums.
    """
    if content[:4] != _PUFFIN or content[-4:] != _PUFFIN:
        raise ValueError("it is not a Puffin file")
    if content[-8:-4] != bytes(4):
        raise ValueError("its footer is compressed")
    size = int.from_bytes(content[-12:-8], "little")
    footer = json.loads(content[-12 - size : -12])
    for blob in footer["blobs"]:
        if blob["type"] != "deletion-vector-v1":
            continue
        start, length = int(blob["offset"]), int(blob["length"])
        part = content[start : start + length]
        if len(part) != length or blob.get("compression-codec"):
            raise ValueError(f"the deletion vector at byte {start} is damaged")
        yield blob["properties"]["referenced-data-file"], framed_rows(part)


def _damage(delete: DataFile, why: str) -> ManifestCorruptError:
    return ManifestCorruptError(
        f"the deletes in {delete.file_path} are damaged: {why}; restore the file, or roll the "
        "table back",
        place=delete.file_path,
    )
