"""Find the files of one version of a Delta table, with the ``deltalake`` package.

The log says which files are current, the values of their partition columns, which rows are deleted,
and under which names files store columns. All of this is applied. Tables that require other reader
features are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import (
    ConfigurationError,
    ManifestCorruptError,
    NotADatasetError,
)
from headrace.storage.parquet.delta_options import delta_options
from headrace.storage.parquet.delta_schema import physical_schema
from headrace.storage.source.kinds import DELTA_LOG_FOLDER
from headrace.storage.store.options import StoreOptions

if TYPE_CHECKING:
    from deltalake import DeltaTable

_KNOWN_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
_ESCAPED = re.compile(rb"(?:\\u00[0-9A-Fa-f]{2})+")


@dataclass(frozen=True, slots=True, eq=False)
class DeltaVersion:
    """One version of a Delta table.

    Attributes:
        version: The number of the version.
        schema: The columns with the table's names.
        physical: The same columns with the files' names.
        names: Its files, relative to the table, oldest first.
        stored_bytes: The size of each file.
        constants: The values of the partition columns, one row per file.
        deleted: Deleted rows, ascending, for files that have any.
    """

    version: int
    schema: pa.Schema
    physical: pa.Schema
    names: tuple[str, ...]
    stored_bytes: tuple[int, ...]
    constants: pa.RecordBatch
    deleted: Mapping[str, NDArray[np.int64]]


def read_delta(url: str, *, options: StoreOptions, version: int | None = None) -> DeltaVersion:
    """Read the log of a Delta table.

    Args:
        url: The URL of the table.
        options: The options of its store.
        version: The version to read, or `None` for the current one.

    Raises:
        NotADatasetError: There is no such version.
        ConfigurationError: The table needs a package that is not installed, or a feature that
            is not supported.
        UnsupportedColumnError: A column cannot be served.
        ManifestCorruptError: The log is damaged.
    """
    table = _open(url, options, version)
    _check_features(table, url)
    schema = pa.schema(cast("pa.Schema", table.schema()))
    actions = pa.table(table.get_add_actions()).sort_by(
        [("modification_time", "ascending"), ("path", "ascending")]
    )
    names = tuple(_name(path, url) for path in _texts(actions.column("path")))
    return DeltaVersion(
        version=table.version(),
        schema=schema,
        physical=physical_schema(schema, json.loads(table.schema().to_json())),
        names=names,
        stored_bytes=_numbers(actions.column("size_bytes")),
        constants=_constants(actions),
        deleted=_deleted(table, names, url),
    )


def _open(url: str, options: StoreOptions, version: int | None) -> DeltaTable:
    try:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"{url} is a Delta table, which needs the deltalake package: pip install "
            "'headrace[delta]'",
            url=url,
        ) from error
    try:
        table = DeltaTable(_root(url), storage_options=delta_options(url, options))
        if version is not None and not 0 <= version <= table.version():
            raise NotADatasetError(
                f"{url} has no version {version}; its current version is {table.version()}", url=url
            )
        if version is not None:
            table.load_as_version(version)
    except TableNotFoundError as error:
        raise NotADatasetError(f"{url} is not a Delta table: {error}", url=url) from error
    except (DeltaError, OSError, ValueError) as error:
        raise _log_damage(url, error) from error
    return table


def _root(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"s3://{rest}" if mark and scheme in {"s3a", "s3n"} else url


def _check_features(table: DeltaTable, url: str) -> None:
    unknown = set(table.protocol().reader_features or ()) - _KNOWN_FEATURES
    if unknown:
        raise ConfigurationError(
            f"{url} needs readers that support {', '.join(sorted(unknown))}, which headrace does "
            "not; drop the feature (ALTER TABLE … DROP FEATURE) or convert the table with "
            "`headrace convert`",
            url=url,
        )
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode not in {"none", "name"}:
        raise ConfigurationError(
            f"{url} maps columns by {mode!r}, expected 'none' or 'name'; copy the table to one "
            "with delta.columnMapping.mode=name or convert it with `headrace convert`",
            url=url,
        )


def _name(path: str, url: str) -> str:
    if "://" in path or path.startswith("/"):
        raise ConfigurationError(
            f"{url} refers to {path}, a file of another table, as a shallow clone does; this is "
            "not supported, so copy the table",
            url=url,
        )
    return unquote(path)


def _texts(column: pa.ChunkedArray[Any]) -> list[str]:
    return [str(value) for value in column.to_pylist()]


def _numbers(column: pa.ChunkedArray[Any]) -> tuple[int, ...]:
    return tuple(int(value or 0) for value in column.to_pylist())


def _constants(actions: pa.Table) -> pa.RecordBatch:
    if "partition" not in actions.column_names:
        return pa.RecordBatch.from_arrays([], names=[])
    flat = actions.select(["partition"]).flatten().combine_chunks()
    columns = [
        _unescaped(pa.concat_arrays(column.chunks)) for column in flat.columns if column.chunks
    ]
    names = [name.removeprefix("partition.") for name in flat.column_names]
    return pa.RecordBatch.from_arrays(columns, names=names[: len(columns)])


def _unescaped(column: pa.Array[Any]) -> pa.Array[Any]:
    """Decode binary values, which `deltalake` returns as the log escapes them.

    A value that is not escaped stays as it is.
    """
    if not pa.types.is_binary(column.type):
        return column
    values = [
        bytes.fromhex(value.replace(b"\\u00", b"").decode())
        if value is not None and _ESCAPED.fullmatch(value)
        else value
        for value in column.to_pylist()
    ]
    return pa.array(values, column.type)


def _deleted(
    table: DeltaTable, names: tuple[str, ...], url: str
) -> Mapping[str, NDArray[np.int64]]:
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    by_end = {_plain_path(name): name for name in names}
    root = _plain_path(table.table_uri)
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as in _open

    try:
        vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    except (DeltaError, pa.ArrowException, OSError, ValueError) as error:
        raise _log_damage(url, error) from error
    deleted = {}
    for path, kept in zip(*vectors.columns, strict=True):
        end = _plain_path(path.as_py()).removeprefix(root).lstrip("/")
        if end not in by_end:
            raise ConfigurationError(
                f"{url} deletes rows of {path}, which is not a file of this version; "
                "repair the table",
                url=url,
            )
        mask = kept.values.to_numpy(zero_copy_only=False)
        deleted[by_end[end]] = np.flatnonzero(~mask).astype(np.int64)
    return deleted


def _plain_path(path: str) -> str:
    """Return the normal form of a file's name, without a scheme and unquoted."""
    return unquote(unquote(urlsplit(path).path if "://" in path else path)).strip("/")


def _log_damage(url: str, error: Exception) -> ManifestCorruptError:
    return ManifestCorruptError(
        f"the log of the Delta table {url} cannot be read: {error}; repair the table, or give a "
        "version whose log is complete",
        place=f"{url}/{DELTA_LOG_FOLDER}",
    )
