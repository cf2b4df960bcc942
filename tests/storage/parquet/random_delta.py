"""Random Delta tables, and the rows that a reader must find in each of their versions."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from storage.parquet.delta_log import (
    inline_vector,
    metadata,
    protocol,
    struct_type,
    vector_file,
    write_checkpoint,
    write_commit,
)
from storage.random_values import maker, nullable, shown

Row = dict[int, Any]
"""Values by the ids of columns: names change."""

_FEATURES = ("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint")
_SIMPLE: dict[pa.DataType, str] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.decimal128(9, 2): "decimal(9,2)",
    pa.decimal128(18, 2): "decimal(18,2)",
    pa.decimal128(20, 4): "decimal(20,4)",
}
_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64(), pa.decimal128(20, 4)),
    pa.float32(): (pa.float64(),),
    pa.decimal128(9, 2): (pa.decimal128(18, 2), pa.decimal128(20, 4)),
    pa.date32(): (pa.timestamp("us"),),
}
_DIVIDING = (pa.int32(), pa.string(), pa.date32(), pa.bool_(), pa.timestamp("us", "UTC"))


@dataclass
class Column:
    """A column: its name for readers and in files, its type, and the types that it had."""

    name: str
    stored: str
    kind: pa.DataType
    changes: list[dict[str, str]] = field(default_factory=list)


@dataclass
class File:
    """A file with its rows, `None` for deleted ones; what the log says of it."""

    said: dict[str, Any]
    rows: list[Row | None]


@dataclass
class RandomDelta:
    """A table that changes at random, with the rows that it must have.

    Attributes:
        folder: Where it lies.
        random: Decides.
        mode: How columns are mapped.
        columns: By their ids.
        partition: The ids of the columns that it is divided by.
        files: The current ones.
        versions: The rows of all versions.
        first: The oldest version that can still be read.
    """

    folder: Path
    random: Random
    mode: str = "none"
    columns: dict[int, Column] = field(default_factory=dict)
    partition: list[int] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    versions: list[Counter[str]] = field(default_factory=list)
    first: int = 0
    _ids: int = 0

    def create(self) -> None:
        """Write the first version, which has one file."""
        self.folder.mkdir(parents=True)
        self.mode = self.random.choice(["none", "name", "name", "id"])
        for _ in range(self.random.randint(1, 3)):
            self._new(_random_kind(self.random))
        for _ in range(self.random.choice([0, 0, 1, 2])):
            self.partition.append(self._new(self.random.choice(_DIVIDING)))
        self._commit([protocol(_FEATURES), self._metadata(), self._written()])

    def change(self) -> None:
        """Do one thing to the table."""
        steps = [self.append] * 3 + [self.delete] * 3 + [self.add, self.widen, self.replace]
        steps.append(self.checkpoint)
        if self.mode != "none":
            steps += [self.rename, self.drop]
        self.random.choice(steps)()

    def append(self) -> None:
        """Add one or two files."""
        self._commit([self._written() for _ in range(self.random.randint(1, 2))])

    def delete(self) -> None:
        """Delete some rows of a file by a vector, in the log or in a file of its own."""
        file = self.random.choice(self.files)
        left = [place for place, row in enumerate(file.rows) if row is not None]
        chosen = [place for place in left if self.random.random() < 0.3]
        if not chosen:
            return
        for place in chosen:
            file.rows[place] = None
        gone = [place for place, row in enumerate(file.rows) if row is None]
        before = dict(file.said)
        if self.random.random() < 0.5:
            file.said["deletionVector"] = inline_vector(gone)
        else:
            name = uuid.UUID(int=self.random.getrandbits(128))
            file.said["deletionVector"] = vector_file(self.folder, name, gone)
        self._commit([_removed(before), {"add": dict(file.said)}])

    def replace(self) -> None:
        """Write the rows of a file again, with the columns of now."""
        file = self.random.choice(self.files)
        self.files.remove(file)
        rows = [row for row in file.rows if row is not None]
        self._commit([_removed(file.said), *([self._written(rows)] if rows else [])])

    def rename(self) -> None:
        """Give a column another name, perhaps one that another had."""
        self.random.choice(list(self.columns.values())).name = self._free_name()
        self._commit([self._metadata()])

    def add(self) -> None:
        """Add a column, or a field of a struct."""
        structs = [one for one in self.columns.values() if pa.types.is_struct(one.kind)]
        if structs and self.random.random() < 0.5:
            column = self.random.choice(structs)
            fields = _fields(column.kind)
            new = pa.field(f"f{len(fields)}", self.random.choice(list(_SIMPLE)))
            column.kind = pa.struct([*fields, new])
            for row in (row for file in self.files for row in file.rows if row is not None):
                number = next(key for key, one in self.columns.items() if one is column)
                if row.get(number) is not None:
                    row[number] = {**row[number], new.name: None}
        elif len(self.columns) < 6:
            self._new(_random_kind(self.random))
        self._commit([self._metadata()])

    def drop(self) -> None:
        """Drop a column that the table is not divided by."""
        able = [number for number in self.columns if number not in self.partition]
        if len(able) > 1:
            del self.columns[self.random.choice(able)]
            self._commit([self._metadata()])

    def widen(self) -> None:
        """Give a column a wider type."""
        able = [number for number, one in self.columns.items() if one.kind in _WIDER]
        if not able:
            return
        number = self.random.choice([one for one in able if one not in self.partition] or able)
        column = self.columns[number]
        kind = self.random.choice(_WIDER[column.kind])
        if number in self.partition:
            return
        column.changes.append({"fromType": _SIMPLE[column.kind], "toType": _SIMPLE[kind]})
        column.kind = kind
        for row in (row for file in self.files for row in file.rows if row is not None):
            if row.get(number) is not None:
                row[number] = _widened(row[number], kind)
        self._commit([self._metadata()])

    def checkpoint(self) -> None:
        """Write a checkpoint, and perhaps remove the commits up to it."""
        version = len(self.versions) - 1
        files = [{"add": file.said} for file in self.files]
        actions = [protocol(_FEATURES), self._metadata(), *files]
        write_checkpoint(self.folder, version, actions, sidecar=self.random.random() < 0.5)
        if self.random.random() < 0.5:
            self.first = version
            for log in (self.folder / "_delta_log").glob("*.json"):
                if int(log.stem) < version:
                    log.unlink()

    def _new(self, kind: pa.DataType) -> int:
        name = self._free_name()
        self._ids += 1
        stored = name if self.mode == "none" else f"col-{self._ids:04}"
        self.columns[self._ids] = Column(name, stored, kind)
        return self._ids

    def _free_name(self) -> str:
        used = {one.name for one in self.columns.values()}
        return self.random.choice(
            [name for name in map("c{}".format, range(12)) if name not in used]
        )

    def _written(self, rows: list[Row] | None = None) -> dict[str, Any]:
        """Write a file of rows, all of one partition, and return the action that adds it."""
        if rows is None:
            rows = [
                {n: nullable(self.random, maker(one.kind)) for n, one in self.columns.items()}
                for _ in range(self.random.randint(1, 9))
            ]
            for number in self.partition:
                value = rows[0][number]  # an empty text is null, as Delta has it
                for row in rows:
                    row[number] = None if value == "" else value
        named = [name for name in self.columns if name not in self.partition]
        self.random.shuffle(named)
        arrays = [
            pa.array([_stored(row.get(number), kind) for row in rows], kind)
            for number in named
            if (kind := self._stored_kind(self.columns[number].kind, number)) is not None
        ]
        fields = [
            pa.field(self.columns[number].stored, array.type, metadata=_id_of(number))
            for number, array in zip(named, arrays, strict=True)
        ]
        name = f"part {self.random.getrandbits(64):x}.parquet"
        pq.write_table(
            pa.Table.from_arrays(arrays, schema=pa.schema(fields)),
            self.folder / name,
            row_group_size=self.random.choice([2, 4, 100]),
            compression=self.random.choice(["none", "snappy", "zstd"]),
            use_dictionary=self.random.random() < 0.5,
        )
        said = {
            "path": quote(name),
            "partitionValues": {
                self.columns[number].stored: _told(rows[0].get(number)) for number in self.partition
            },
            "size": (self.folder / name).stat().st_size,
            "modificationTime": len(self.versions),
            "dataChange": True,
            "stats": json.dumps({"numRecords": len(rows)}),
        }
        self.files.append(File(said, list(rows)))
        return {"add": dict(said)}

    def _stored_kind(self, kind: pa.DataType, number: int) -> pa.DataType:
        """Return a type with the names that files have for fields of structs."""
        if self.mode == "none" or not pa.types.is_struct(kind):
            return kind
        return pa.struct(
            [
                pa.field(f"x-{number}-{place}", one.type, metadata=_id_of(1000 * number + place))
                for place, one in enumerate(_fields(kind))
            ]
        )

    def _metadata(self) -> dict[str, Any]:
        fields = [self._said(number, column) for number, column in self.columns.items()]
        divided = [self.columns[number].name for number in self.partition]
        most = {"delta.columnMapping.maxColumnId": "100000"}
        mapping = {} if self.mode == "none" else {"delta.columnMapping.mode": self.mode, **most}
        return metadata(struct_type(fields), divided, mapping)

    def _said(self, number: int, column: Column) -> dict[str, Any]:
        said: dict[str, Any] = {"delta.typeChanges": column.changes} if column.changes else {}
        kind = self._said_kind(column.kind, number)
        return {
            "name": column.name,
            "type": kind,
            "nullable": True,
            "metadata": {**said, **self._mapped(number, column.stored)},
        }

    def _said_kind(self, kind: pa.DataType, number: int) -> Any:
        if pa.types.is_struct(kind):
            fields = [
                {
                    "name": one.name,
                    "type": _SIMPLE[one.type],
                    "nullable": True,
                    "metadata": self._mapped(1000 * number + place, f"x-{number}-{place}"),
                }
                for place, one in enumerate(_fields(kind))
            ]
            return struct_type(fields)
        if pa.types.is_list(kind):
            item = _SIMPLE[kind.value_type]
            return {"type": "array", "elementType": item, "containsNull": True}
        if pa.types.is_map(kind):
            value = _SIMPLE[kind.item_type]
            return {
                "type": "map",
                "keyType": "string",
                "valueType": value,
                "valueContainsNull": True,
            }
        return _SIMPLE[kind]

    def _mapped(self, number: int, stored: str) -> dict[str, Any]:
        if self.mode == "none":
            return {}
        return {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored}

    def _commit(self, actions: list[dict[str, Any]]) -> None:
        write_commit(self.folder, len(self.versions), actions)
        self.versions.append(
            Counter(
                shown({one.name: row.get(number) for number, one in self.columns.items()})
                for file in self.files
                for row in file.rows
                if row is not None
            )
        )


def random_delta(folder: Path, random: Random) -> RandomDelta:
    """Make a table and change it some times."""
    table = RandomDelta(folder, random)
    table.create()
    for _ in range(random.randint(2, 8)):
        if table.files:
            table.change()
    table.append()
    return table


def _random_kind(random: Random) -> pa.DataType:
    kind = random.choice(list(_SIMPLE))
    choice = random.random()
    if choice < 0.1:
        return pa.list_(kind)
    if choice < 0.25:
        return pa.struct([("f0", kind), ("f1", random.choice(list(_SIMPLE)))])
    return pa.map_(pa.string(), kind) if choice < 0.3 else kind


def _fields(kind: Any) -> list[pa.Field[Any]]:
    return list(kind)


def _removed(said: dict[str, Any]) -> dict[str, Any]:
    kept = {name: said[name] for name in ("path", "deletionVector") if name in said}
    return {"remove": {**kept, "deletionTimestamp": 1, "dataChange": True}}


def _stored(value: Any, kind: pa.DataType) -> Any:
    """Return a value with the names that files have for fields of structs."""
    if value is None or not pa.types.is_struct(kind):
        return value
    return dict(zip([one.name for one in _fields(kind)], value.values(), strict=True))


def _id_of(number: int) -> dict[str, str]:
    return {"PARQUET:field_id": str(number)}


def _widened(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_float64(kind):
        return float(value)
    if pa.types.is_decimal(kind):
        return Decimal(value).quantize(Decimal(1).scaleb(-kind.scale))
    if pa.types.is_timestamp(kind):
        return dt.datetime.combine(value, dt.time())
    return value


def _told(value: Any) -> str | None:
    """Return the value of a partition as the log has it."""
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
