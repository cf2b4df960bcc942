"""Find the files of one version of a Delta table, with the ``deltalake`` package.

The log says which files are current, the values of their partition columns, which rows are deleted,
and under which names files store columns. All of this is applied. Tables that require other reader
features are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import (
    ConfigurationError,
    ManifestCorruptError,
    NotADatasetError,
)
from headrace.storage.parquet.delta_options import delta_options
from headrace.storage.parquet.delta_places import refuse_other_places, vectors_of
from headrace.storage.parquet.delta_schema import physical_schema
from headrace.storage.parquet.delta_vectors import deleted_rows
from headrace.storage.source.kinds import DELTA_LOG_FOLDER
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.outer_store import outer_name
from headrace.storage.store.store import ObjectEntry, Store

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
_VARIANT_FEATURES = {
    "variantShredding",
    "variantShredding-preview",
    "variantType",
    "variantType-preview",
}
_CATALOG_FEATURES = {"catalogManaged", "catalogOwned", "catalogOwned-preview"}
_CONVERT = 'Or convert it with Spark: write_shards(spark.read.table(NAME), "s3://bucket/dataset")'
_ESCAPED = re.compile(rb"(?:\\u00[0-9A-Fa-f]{2})+")


class TableFiles(Protocol):
    """The files of a table."""

    @property
    def files(self) -> Store:
        """Their store."""

    @property
    def entries(self) -> tuple[ObjectEntry, ...]:
        """All of them."""


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


def read_delta(
    url: str,
    found: TableFiles,
    *,
    options: StoreOptions,
    version: int | None = None,
    prefixes: Sequence[str] = (),
) -> DeltaVersion:
    """Read the log of a Delta table.

    Args:
        url: The URL of the table.
        found: The files of the table.
        options: The options of its store.
        version: The version to read, or `None` for the current one.
        prefixes: Of the operator, below which the log may name files.

    Raises:
        NotADatasetError: There is no such version.
        ConfigurationError: The table needs a package that is not installed, or a feature that
            is not supported, or its log names places outside of it.
        UnsupportedColumnError: A column cannot be served.
        ManifestCorruptError: The log is damaged.
    """
    refuse_other_places(found.files, found.entries, version=version)
    table = _open(url, options, version)
    _check_features(table, url)
    vectors: Mapping[str, Mapping[str, Any]] = {}
    if "deletionVectors" in (table.protocol().reader_features or ()):
        vectors = vectors_of(found.files, found.entries, version=table.version(), prefixes=prefixes)
    schema = pa.schema(cast("pa.Schema", table.schema()))
    actions = pa.table(table.get_add_actions()).sort_by(
        [("modification_time", "ascending"), ("path", "ascending")]
    )
    paths = _texts(actions.column("path"))
    names = tuple(_name(path, url, prefixes) for path in paths)
    return DeltaVersion(
        version=table.version(),
        schema=schema,
        physical=physical_schema(
            schema, json.loads(table.schema().to_json()), by_id=_mode(table) == "id"
        ),
        names=names,
        stored_bytes=_numbers(actions.column("size_bytes")),
        constants=_constants(actions),
        deleted=deleted_rows(
            found.files,
            {
                name: vectors[path]
                for name, path in zip(names, paths, strict=True)
                if path in vectors
            },
            prefixes=prefixes,
        ),
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
        if "catalog-managed" in str(error):
            raise _managed(url) from error
        raise _log_damage(url, error) from error
    return table


def _root(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"s3://{rest}" if mark and scheme in {"s3a", "s3n"} else url


def _check_features(table: DeltaTable, url: str) -> None:
    features = set(table.protocol().reader_features or ())
    if features & _CATALOG_FEATURES:
        raise _managed(url)
    unknown = features - _KNOWN_FEATURES
    if not _has_variants(json.loads(table.schema().to_json())):
        unknown -= _VARIANT_FEATURES  # listed by writers, but no column is concerned
    if unknown:
        raise ConfigurationError(
            f"{url} needs readers that support {', '.join(sorted(unknown))}, which headrace does "
            f"not; drop the feature (ALTER TABLE … DROP FEATURE). {_CONVERT}",
            url=url,
        )
    if (mode := _mode(table)) not in {"none", "name", "id"}:
        raise ConfigurationError(
            f"{url} maps columns by {mode!r}, expected 'none', 'name' or 'id'; copy the table to "
            f"one with delta.columnMapping.mode=name. {_CONVERT}",
            url=url,
        )


def _mode(table: DeltaTable) -> str:
    return str(table.metadata().configuration.get("delta.columnMapping.mode", "none"))


def _managed(url: str) -> ConfigurationError:
    return ConfigurationError(
        f"{url} is a catalog-managed Delta table: the catalog alone knows its latest commits, and "
        "headrace reads the log in the folder. Convert it with Spark: "
        'write_shards(spark.read.table(NAME), "s3://bucket/dataset")',
        url=url,
    )


def _has_variants(kind: object) -> bool:
    """Return whether there is a column of variants anywhere in a table's schema."""
    if isinstance(kind, Mapping):
        names = ("fields", "type", "elementType", "keyType", "valueType")
        return any(_has_variants(kind.get(name)) for name in names)
    if isinstance(kind, list):
        return any(map(_has_variants, kind))
    return kind == "variant"


def _name(path: str, url: str, prefixes: Sequence[str]) -> str:
    if ":/" not in path and not path.startswith("/"):
        return unquote(path)
    if (outer := outer_name(unquote(path), prefixes)) is not None:
        return outer
    raise ConfigurationError(
        f"{url} refers to {path}, a file of another table, as a shallow clone does; copy the "
        "table, or give the location of the other one in source.table_prefixes of the server's "
        "configuration",
        url=url,
    )


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


def _log_damage(url: str, error: Exception) -> ManifestCorruptError:
    return ManifestCorruptError(
        f"the log of the Delta table {url} cannot be read: {error}; repair the table, or give a "
        "version whose log is complete",
        place=f"{url}/{DELTA_LOG_FOLDER}",
    )
