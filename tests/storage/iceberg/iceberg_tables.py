"""Write Iceberg tables whose rows are known: what pyiceberg writes, and the deletes that it lacks.

Data files are written with pyarrow, from the table's own schema, and committed by pyiceberg.
Positional deletes and deletion vectors are written from Iceberg's specifications.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyroaring import BitMap64

CATALOG = "lake"


def new_catalog(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Make a catalog in SQLite, and name it in the environment."""
    stated = {
        "TYPE": "sql",
        "URI": f"sqlite:///{folder}/catalog.db",
        "WAREHOUSE": f"file://{folder}",
    }
    for key, value in stated.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__{key}", value)
    properties: dict[str, str | None] = {key.lower(): value for key, value in stated.items()}
    made = load_catalog(CATALOG, **properties)
    made.create_namespace("n")
    return made


def write_rows(table: Table, rows: Sequence[Mapping[str, Any]], *, without: str = "") -> DataFile:
    """Append a file of rows with the table's schema and ids, all of one partition.

    Args:
        table: The table.
        rows: Values by the names that columns have now.
        without: A column to leave out of the file, as a partition of Hive is.
    """
    schema = schema_to_pyarrow(table.schema())
    written = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    if without:
        written = written.drop_columns([without])
    path = Path(f"{table.location().removeprefix('file://')}/data/{uuid.uuid4().hex}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(written, path, row_group_size=3, store_schema=False)
    names = {field.field_id: field.name for field in table.schema().fields}
    values = [_stored(rows[0][names[field.source_id]]) for field in table.spec().fields]
    file = _data_file(
        table, path, len(rows), partition=Record(*values), content=DataFileContent.DATA
    )
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    return file


def delete_rows(
    table: Table, deleted: Mapping[str, Iterable[int]], *, of: DataFile, kind: str
) -> DataFile:
    """Delete rows by position, in a file of ``positions`` or a ``vector``, or by ``equality``."""
    folder = Path(table.location().removeprefix("file://")) / "data"
    content, form = DataFileContent.POSITION_DELETES, FileFormat.PARQUET
    if kind == "vector":
        path, form = folder / f"{uuid.uuid4().hex}.puffin", FileFormat.PUFFIN
        path.write_bytes(puffin(deleted))
    else:
        path = folder / f"{uuid.uuid4().hex}-deletes.parquet"
        pairs = [(name, row) for name in sorted(deleted) for row in sorted(deleted[name])]
        columns = {
            "file_path": pa.array([name for name, _ in pairs], pa.string()),
            "pos": pa.array([row for _, row in pairs], pa.int64()),
        }
        pq.write_table(pa.table(columns), path)
    if kind == "equality":
        content = DataFileContent.EQUALITY_DELETES
    count = sum(len(list(rows)) for rows in deleted.values())
    file = _data_file(table, path, count, partition=of.partition, content=content, form=form)
    with table.transaction() as transaction:
        producer = _Deletes(Operation.DELETE, transaction, table.io)
        producer.of_spec = table.specs()[of.spec_id or 0]
        producer.append_data_file(file)
        producer.commit()
    return file


def puffin(deleted: Mapping[str, Iterable[int]]) -> bytes:
    """Return a Puffin file with a deletion vector for each data file."""
    content, blobs = b"PFA1", []
    for path, rows in deleted.items():
        inner = b"\xd1\xd3\x39\x64" + BitMap64(rows).serialize()
        blob = len(inner).to_bytes(4, "big") + inner + zlib.crc32(inner).to_bytes(4, "big")
        about = {"snapshot-id": -1, "sequence-number": -1, "fields": [2147483546]}
        properties = {"referenced-data-file": path, "cardinality": str(len(BitMap64(rows)))}
        place = {"offset": len(content), "length": len(blob), "properties": properties}
        blobs.append({"type": "deletion-vector-v1", **about, **place})
        content += blob
    footer = json.dumps({"blobs": blobs}).encode()
    return content + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(_FastAppendFiles):
    """A commit that adds a manifest of deletes."""

    of_spec: PartitionSpec

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        del spec
        output = self.new_manifest_output()
        return _DeleteManifest(
            self.of_spec, self.schema(), output, self._snapshot_id, self._compression
        )


def _data_file(
    table: Table,
    path: Path,
    count: int,
    *,
    partition: Record,
    content: DataFileContent,
    form: FileFormat = FileFormat.PARQUET,
) -> DataFile:
    made = DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=form,
        partition=partition,
        record_count=count,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
    )
    made.spec_id = table.spec().spec_id
    return made


def _stored(value: object) -> object:
    """Return a value of a partition as manifests have it."""
    return (value - dt.date(1970, 1, 1)).days if type(value) is dt.date else value
