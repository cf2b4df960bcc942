"""Random tables, and the rows that a reader must find in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from storage.iceberg.iceberg_tables import delete_rows, write_rows
from storage.random_values import Value, maker, nullable, shown

Row = dict[int, Any]
"""Values by the ids of columns: names change."""

_SIMPLE: list[IcebergType] = [
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    BooleanType(),
    StringType(),
    BinaryType(),
    DateType(),
    TimestampType(),
    TimestamptzType(),
    DecimalType(9, 2),
]
_PROMOTED: dict[IcebergType, IcebergType] = {
    IntegerType(): LongType(),
    FloatType(): DoubleType(),
    DecimalType(9, 2): DecimalType(18, 2),
}


@dataclass
class RandomTable:
    """A table that changes at random, with the rows that it must have.

    Attributes:
        table: The table of pyiceberg.
        random: Decides.
        makers: How values of columns are made, by id.
        files: Its data files with their rows, `None` for deleted ones.
    """

    table: Table
    random: Random
    makers: dict[int, Value] = field(default_factory=dict)
    files: list[tuple[DataFile, list[Row | None]]] = field(default_factory=list)

    def change(self) -> None:
        """Do one thing to the table."""
        steps = [self.append] * 3 + [self.delete] * 3 + [self.rename, self.add, self.drop]
        self.random.choice([*steps, self.promote, self.divide])()

    def append(self) -> None:
        """Write a file of rows, all of one partition."""
        count = self.random.randint(1, 9)
        rows = [
            {number: nullable(self.random, make) for number, make in self.makers.items()}
            for _ in range(count)
        ]
        for part in self.table.spec().fields:
            for row in rows:
                row[part.source_id] = rows[0][part.source_id]
        names = self._names()
        named = [{names[number]: value for number, value in row.items()} for row in rows]
        file = write_rows(self.table, named)
        self.files.append((file, list(rows)))

    def delete(self) -> None:
        """Delete some rows of a file, by positions or by a vector."""
        left = [one for one in self.files if any(row is not None for row in one[1])]
        if not left:
            return
        file, rows = self.random.choice(left)
        # A vector replaces what was deleted before, so it has all of it.
        gone = {place for place in range(len(rows)) if self.random.random() < 0.3}
        before = {place for place, row in enumerate(rows) if row is None}
        kind = self.random.choice(["positions", "vector"])
        delete_rows(self.table, {file.file_path: gone | before}, of=file, kind=kind)
        for place in gone:
            rows[place] = None

    def rename(self) -> None:
        """Give a column another name, perhaps that which another had."""
        names = self._names()
        free = [name for name in map("c{}".format, range(12)) if name not in names.values()]
        with self.table.update_schema() as update:
            update.rename_column(self.random.choice(list(names.values())), self.random.choice(free))

    def add(self) -> None:
        """Add a column, or a field of a struct."""
        kind = _new_column(self.random)
        free = [name for name in map("c{}".format, range(12)) if name not in self._names().values()]
        if len(self.makers) < 6:
            name = self.random.choice(free)
            with self.table.update_schema() as update:
                update.add_column(name, kind)
            self.makers[self.table.schema().find_field(name).field_id] = _maker_of(kind)

    def drop(self) -> None:
        """Drop a column that the table is not divided by."""
        divided = {part.source_id for part in self.table.spec().fields}
        names = {key: name for key, name in self._names().items() if key not in divided}
        if len(self.makers) > 2 and names:
            number = self.random.choice(list(names))
            with self.table.update_schema() as update:
                update.delete_column(names[number])
            del self.makers[number]

    def promote(self) -> None:
        """Widen a column."""
        for column in self.table.schema().fields:
            if (wider := _PROMOTED.get(column.field_type)) is not None:
                with self.table.update_schema() as update:
                    update.update_column(column.name, wider)
                return

    def divide(self) -> None:
        """Divide the table by another column, or by none."""
        parts = self.table.spec().fields
        kinds = (IntegerType, LongType, StringType, DateType, BooleanType)
        able = [one for one in self.table.schema().fields if isinstance(one.field_type, kinds)]
        with self.table.update_spec() as update:
            if parts:
                update.remove_field(parts[0].name)
            elif able:
                chosen = self.random.choice(able)
                update.add_field(chosen.name, IdentityTransform(), f"p{self.random.random()}")

    def rows(self) -> Counter[str]:
        """Return the rows that a reader must find."""
        names = self._names()
        return Counter(
            shown({name: row.get(number) for number, name in names.items()})
            for _, rows in self.files
            for row in rows
            if row is not None
        )

    def _names(self) -> dict[int, str]:
        return {one.field_id: one.name for one in self.table.schema().fields}


def random_table(catalog: Catalog, random: Random, name: str) -> RandomTable:
    """Make a table and change it some times."""
    columns: list[NestedField] = []
    makers: dict[int, Value] = {}
    for number in range(1, random.randint(2, 5)):
        kind = _new_column(random, first_id=100 * number)
        columns.append(NestedField(number, f"c{number}", kind, required=False))
    made = catalog.create_table(f"n.{name}", Schema(*columns), properties={"format-version": "2"})
    # The catalog gives ids of its own, in the same order.
    random_of = Random(random.random())
    for column in made.schema().fields:
        makers[column.field_id] = _maker_of(column.field_type)
    table = RandomTable(made, random_of, makers)
    table.append()
    for _ in range(random.randint(2, 8)):
        table.change()
    table.append()
    return table


def _new_column(random: Random, *, first_id: int = 100) -> IcebergType:
    kind = random.choice(_SIMPLE)
    choice = random.random()
    if choice < 0.1:
        return ListType(first_id, kind, element_required=False)
    if choice < 0.25:
        return StructType(
            NestedField(first_id, "u", kind, required=False),
            NestedField(first_id + 1, "v", random.choice(_SIMPLE), required=False),
        )
    if choice < 0.3:
        return MapType(first_id, StringType(), first_id + 1, kind, value_required=False)
    return kind


def _maker_of(kind: IcebergType) -> Value:
    return maker(schema_to_pyarrow(kind))
