"""Write Delta logs by hand: column mapping and deletion vectors, which delta-rs only reads."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

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
        content = deletion_vector(deleted)
        action["deletionVector"] = {
            "storageType": "i",
            "pathOrInlineDv": z85(content),
            "sizeInBytes": len(content),
            "cardinality": len(deleted),
        }
    return {"add": action}


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
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": list(features),
        "writerFeatures": list(features),
    }
    metadata = {
        "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": list(partition_columns),
        "configuration": dict(configuration or {}),
        "createdTime": 0,
    }
    lines = [{"protocol": protocol}, {"metaData": metadata}, *actions]
    log = table / "_delta_log" / f"{0:020}.json"
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(json.dumps(line) for line in lines))


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
