"""Write Delta logs by hand: column mapping and deletion vectors, which delta-rs only reads."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_MAGIC = 1681511377  # of a deletion vector's portable form
_COOKIE = 12346  # of a roaring bitmap without runs


def field(
    name: str, kind: object, *, physical: str | None = None, nullable: bool = True
) -> dict[str, object]:
    """Return a column of a table's schema."""
    metadata: dict[str, object] = {}
    if physical is not None:
        identity = int.from_bytes(physical[-4:].encode())  # any number, each of its own
        metadata = {
            "delta.columnMapping.id": identity,
            "delta.columnMapping.physicalName": physical,
        }
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct_type(fields: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the type of a struct, or the schema of a table."""
    return {"type": "struct", "fields": list(fields)}


def add(
    table: Path,
    name: str,
    *,
    partition: Mapping[str, str | None] | None = None,
    deleted: Sequence[int] = (),
    stated_rows: int | None = None,
) -> dict[str, object]:
    """Return the action that adds a file, some of its rows deleted."""
    action: dict[str, object] = {
        "path": name,
        "partitionValues": dict(partition or {}),
        "size": (table / name).stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
    }
    if deleted:
        rows = stated_rows or pq.read_metadata(table / name).num_rows
        action["stats"] = json.dumps({"numRecords": rows})
        action["deletionVector"] = inline_vector(deleted)
    return {"add": action}


def inline_vector(rows: Sequence[int]) -> dict[str, object]:
    """Return what the log says of a deletion vector that is in it."""
    content = deletion_vector(rows)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85(content),
        "sizeInBytes": len(content),
        "cardinality": len(rows),
    }


def write_log(
    table: Path,
    schema: Mapping[str, object],
    actions: Sequence[Mapping[str, object]],
    *,
    partition_columns: Sequence[str] = (),
    features: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
) -> None:
    """Write version 0 of a table."""
    first = [protocol(features), metadata(schema, partition_columns, configuration or {})]
    write_commit(table, 0, [*first, *actions])


def protocol(features: Sequence[str]) -> dict[str, object]:
    """Return the action that lists the features of a table."""
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {
        "protocol": {
            **versions,
            "readerFeatures": list(features),
            "writerFeatures": list(features),
        }
    }


def metadata(
    schema: Mapping[str, object], partition_columns: Sequence[str], configuration: Mapping[str, str]
) -> dict[str, object]:
    """Return the action that says which columns a table has."""
    return {
        "metaData": {
            "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": list(partition_columns),
            "configuration": dict(configuration),
            "createdTime": 0,
        }
    }


def write_commit(table: Path, version: int, actions: Sequence[Mapping[str, object]]) -> None:
    """Write one version of a table."""
    log = table / "_delta_log" / f"{version:020}.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(json.dumps(line) for line in actions))


def write_checkpoint(
    table: Path, version: int, actions: Sequence[Mapping[str, Any]], *, sidecar: bool
) -> None:
    """Write a checkpoint: all that holds after a version; the files in a sidecar, or with the rest.

    Source: Delta's protocol, "Checkpoints" and "V2 Spec".
    """
    log = table / "_delta_log"
    apart = [one for one in actions if "add" in one] if sidecar else []
    main = [one for one in actions if one not in apart]
    name = f"{version:020}.checkpoint.parquet"
    if apart:
        (log / "_sidecars").mkdir(exist_ok=True)
        file = log / "_sidecars" / f"{uuid.uuid4()}.parquet"
        pq.write_table(
            pa.Table.from_pylist(apart, schema=pa.schema([_CHECKPOINT.field("add")])), file
        )
        size = file.stat().st_size
        main += [
            {"checkpointMetadata": {"version": version}},
            {"sidecar": {"path": file.name, "sizeInBytes": size, "modificationTime": 0}},
        ]
        name = f"{version:020}.checkpoint.{uuid.uuid4()}.parquet"
    pq.write_table(pa.Table.from_pylist(main, schema=_CHECKPOINT), log / name)


_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR: dict[str, pa.DataType] = {
    "storageType": pa.string(),
    "pathOrInlineDv": pa.string(),
    "offset": pa.int32(),
    "sizeInBytes": pa.int32(),
    "cardinality": pa.int64(),
}
_CHECKPOINT_KINDS: dict[str, dict[str, pa.DataType]] = {
    "protocol": {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": pa.list_(pa.string()),
        "writerFeatures": pa.list_(pa.string()),
    },
    "metaData": {
        "id": pa.string(),
        "format": pa.struct([("provider", pa.string()), ("options", _TEXTS)]),
        "schemaString": pa.string(),
        "partitionColumns": pa.list_(pa.string()),
        "configuration": _TEXTS,
        "createdTime": pa.int64(),
    },
    "add": {
        "path": pa.string(),
        "partitionValues": _TEXTS,
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "stats": pa.string(),
        "deletionVector": pa.struct(list(_VECTOR.items())),
    },
    "checkpointMetadata": {"version": pa.int64()},
    "sidecar": {"path": pa.string(), "sizeInBytes": pa.int64(), "modificationTime": pa.int64()},
}
_CHECKPOINT = pa.schema(
    [(name, pa.struct(list(kinds.items()))) for name, kinds in _CHECKPOINT_KINDS.items()]
)


def vector_file(table: Path, name: uuid.UUID, rows: Sequence[int]) -> dict[str, object]:
    """Write a deletion vector to a file of its own, and return what the log says of it.

    Source: Delta's protocol, "Deletion Vector File Storage Format".
    """
    content = deletion_vector(rows)
    framed = struct.pack(">BI", 1, len(content)) + content + struct.pack(">I", zlib.crc32(content))
    (table / f"deletion_vector_{name}.bin").write_bytes(framed)
    return {
        "storageType": "u",
        "pathOrInlineDv": z85(name.bytes),
        "offset": 1,
        "sizeInBytes": len(content),
        "cardinality": len(rows),
    }


def deletion_vector(rows: Sequence[int]) -> bytes:
    """Return a deletion vector of rows below 65,536: one bitmap of one array container.

    Source: Delta's protocol, "Deletion Vector Format", and the portable roaring format.
    """
    values = sorted(rows)
    container = struct.pack("<HHI", 0, len(values) - 1, 16)
    bitmap = struct.pack("<II", _COOKIE, 1) + container + struct.pack(f"<{len(values)}H", *values)
    content = struct.pack("<IQI", _MAGIC, 1, 0) + bitmap
    return content + bytes(-len(content) % 4)


def z85(content: bytes) -> str:
    """Return bytes as text, five characters for four bytes.

    Source: ZeroMQ RFC 32.
    """
    text = []
    for (value,) in struct.iter_unpack(">I", content):
        text += [_Z85[value // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(text)
