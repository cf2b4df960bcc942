"""Random tables, the files that hold them, and the rows that training sees of them."""

from __future__ import annotations

import datetime as dt
import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.client import NumpyDataset
from headrace.converter import convert_files
from headrace.storage import open_dataset
from support.datasets import write_dataset

NAMES = ["a", "B", "a b", "x,y", 'say "x"', "größe", "select", "null", "0", "a=b", "column0"]
TEXTS = [
    *("", " ", "a", "01234", "1", "-1", "1.50", "1.0", "1e5", "-0", "true", "True", "NA", "null"),
    *("nan", "inf", "2024-02-29", "2024-02-30", "2024-02-29 12:00:00", "2024-02-29T12:00:00Z"),
    *('"', '""', "a,b", "a\tb", "a\nb", "a\r\nb", "\r", "\n", "C:\\", "\\N", "'", ";", "|", "#"),
    *("é", "e\u0301", "😀", "\u2028", "\x85", "\ufeff", "\x7f", "\x1c", "x" * 3000, "\x00"),
]
KINDS: Mapping[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "digits": pa.string(),
    "date": pa.date32(),
    "time": pa.timestamp("us"),
    "bytes": pa.binary(),
    "ints": pa.list_(pa.int64()),
}
EDGES = [0, 1, -1, 2**31, 2**53 + 1, -(2**63), 2**63 - 1]
FLOATS = [0.0, -0.0, 1.0, 0.1, 1e-5, 1e16, 1.5e300, 5e-324, float("nan"), float("inf"), -2.5]


@dataclass(frozen=True)
class RandomTable:
    """A table as Python has it."""

    kinds: Mapping[str, str]
    rows: Sequence[tuple[Any, ...]]

    @property
    def arrow(self) -> pa.Table:
        """The same as Arrow has it."""
        columns = zip(*self.rows, strict=True)
        return pa.table(
            {
                name: pa.array(values, KINDS[kind])
                for (name, kind), values in zip(self.kinds.items(), columns, strict=True)
            }
        )

    @property
    def has_nulls(self) -> bool:
        """Whether there is one."""
        return any(value is None for row in self.rows for value in row)

    def has(self, kind: str) -> bool:
        """Tell whether a column is of that kind."""
        return kind in self.kinds.values()


def random_table(seed: int, *, nested: bool = True, nulls: bool = True) -> RandomTable:
    """Make a table of 1 to 5 columns and 1 to 40 rows."""
    rng = random.Random(seed)
    flat = [kind for kind in KINDS if nested or kind not in {"bytes", "ints"}]
    names = rng.sample(NAMES, rng.randint(1, 5))
    kinds = {name: rng.choice(flat) for name in names}
    shares = {name: rng.choice([0, 0, 0.1, 0.5, 1]) if nulls else 0 for name in names}
    rows = [
        tuple(
            None if rng.random() < shares[name] else _value(rng, kind)
            for name, kind in kinds.items()
        )
        for _ in range(rng.randint(1, 40))
    ]
    return RandomTable(kinds, rows)


def _value(rng: random.Random, kind: str) -> Any:
    makers: Mapping[str, Callable[[], Any]] = {
        "int": lambda: rng.choice([rng.choice(EDGES), rng.randint(-999, 999)]),
        "float": lambda: rng.choice([rng.choice(FLOATS), rng.gauss(0, 1), rng.randint(0, 9) / 4]),
        "bool": lambda: rng.random() < 0.5,
        "text": lambda: "".join(rng.choices(TEXTS, k=rng.choice([1, 1, 2]))),
        "digits": lambda: rng.choice(["7", "12", "0.5", "-3"]),
        "date": lambda: dt.date(1970, 1, 1) + dt.timedelta(rng.randint(-30_000, 30_000)),
        "time": lambda: (
            dt.datetime.fromisoformat("2000-01-01")
            + dt.timedelta(microseconds=rng.randint(-(10**15), 10**15))
        ),
        "bytes": lambda: rng.randbytes(rng.choice([0, 1, 20])),
        "ints": lambda: [rng.choice(EDGES) for _ in range(rng.choice([0, 2, 2, 3]))],
    }
    return makers[kind]()


def csv_text(value: Any) -> str | None:
    """Return what a field of CSV says; nothing for a null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ", timespec="microseconds")
    return value.isoformat() if isinstance(value, dt.date) else repr(value)


def write_csv(path: Path, table: RandomTable, rng: random.Random) -> None:
    """Write RFC 4180, with quotes where they must be and sometimes where they need not be."""
    end = rng.choice(["\n", "\r\n"])
    lines = [",".join(_quoted(name, rng) for name in table.kinds)]
    lines += [",".join(_quoted(csv_text(value), rng) for value in row) for row in table.rows]
    path.write_bytes((end.join(lines) + end).encode())


def _quoted(text: str | None, rng: random.Random) -> str:
    if text is None:
        return ""
    needed = not text or any(mark in text for mark in '",\r\n')
    return '"' + text.replace('"', '""') + '"' if needed or rng.random() < 0.2 else text


def json_value(value: Any) -> Any:
    """Return what JSON can say of a value."""
    return value.isoformat() if isinstance(value, dt.date) else value


def write_json(path: Path, table: RandomTable, rng: random.Random) -> None:
    """Write an object a line, an array, or objects over several lines; nulls may be left out."""
    records = [
        {
            name: json_value(value)
            for name, value in zip(table.kinds, row, strict=True)
            if value is not None or rng.random() < 0.5 or not at
        }
        for at, row in enumerate(table.rows)
    ]
    ascii_only, style = rng.random() < 0.5, rng.choice(["lines", "array", "pretty"])
    if style == "array":
        text = json.dumps(records, ensure_ascii=ascii_only, indent=rng.choice([None, 1]))
    else:
        indent = 2 if style == "pretty" else None
        text = "\n".join(json.dumps(r, ensure_ascii=ascii_only, indent=indent) for r in records)
    path.write_text(text, encoding="utf-8", newline="")


def as_csv(table: RandomTable, folder: Path, rng: random.Random) -> None:
    """Convert a table by way of CSV."""
    write_csv(folder / "t.csv", table, rng)
    convert_files(str(folder / "t.csv"), str(folder / "out"), source_format="csv", threads=1)


def as_json(table: RandomTable, folder: Path, rng: random.Random) -> None:
    """Convert a table by way of JSON."""
    write_json(folder / "t.json", table, rng)
    convert_files(str(folder / "t.json"), str(folder / "out"), source_format="json", threads=1)


def as_parquet(table: RandomTable, folder: Path, rng: random.Random) -> None:
    """Convert a table by way of Parquet."""
    pq.write_table(table.arrow, folder / "t.parquet", row_group_size=rng.randint(1, 40))
    convert_files(
        str(folder / "t.parquet"), str(folder / "out"), source_format="parquet", threads=1
    )


def as_mds(table: RandomTable, folder: Path, rng: random.Random) -> None:
    """Write a table as MosaicML's format, which is served as it is."""
    as_parquet(table, folder, rng)
    (folder / "out").rename(folder / "own")
    convert_files(
        str(folder / "own"), str(folder / "out"), source_format="headrace", format="mds", threads=1
    )


def as_arrow(table: RandomTable, folder: Path, rng: random.Random) -> None:
    """Write a table as shards of ours, cut somewhere."""
    first = rng.randint(0, len(table.rows) - 1)
    cut = [first, len(table.rows) - first] if first else [len(table.rows)]
    write_dataset(str(folder / "out"), table.arrow, shard_samples=cut)


def seen_by_training(address: str, name: str, names: Iterable[str]) -> Counter[tuple[Any, ...]]:
    """Return the rows of a shuffled epoch, as `canonical` has them."""
    rows: Counter[tuple[Any, ...]] = Counter()
    dataset = NumpyDataset(address, name, batch_size=7, seed=1, epochs=1, end="uneven")
    for arrays in dataset:
        columns = [_column(arrays, column) for column in names]
        rows.update(zip(*columns, strict=True))
    return rows


def _column(arrays: Mapping[str, Any], name: str) -> list[Any]:
    values = list(arrays[name])
    valid = arrays.get(f"{name}.valid")
    kept = [True] * len(values) if valid is None else valid.tolist()
    return [
        canonical(value) if is_valid else None for value, is_valid in zip(values, kept, strict=True)
    ]


def canonical(value: Any) -> Any:
    """Return a value such that equal bits are equal, NaN and -0.0 too."""
    if isinstance(value, np.ndarray | list):
        return tuple(canonical(item) for item in value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    return value


def expected_rows(
    table: RandomTable, url: Path, told: Callable[[Any, pa.DataType], Any]
) -> Counter[tuple[Any, ...]]:
    """Return the rows that went in, as training sees the types that they were stored with."""
    with open_dataset(str(url)) as dataset:
        types = {field.name: field.type for field in dataset.schema}
    return Counter(
        tuple(
            None if value is None else canonical(as_number(told(value, types[name]), types[name]))
            for name, value in zip(table.kinds, row, strict=True)
        )
        for row in table.rows
    )


def as_number(value: Any, kind: pa.DataType) -> Any:
    """Return dates and times as training sees them: days, and units of the type."""
    if pa.types.is_date32(kind):
        return pa.scalar(value, kind).cast(pa.int32()).as_py()
    if pa.types.is_timestamp(kind):
        return pa.scalar(value, kind).cast(pa.int64()).as_py()
    return value


def told_as_is(value: Any, kind: pa.DataType) -> Any:
    """Return a value that keeps its type."""
    del kind
    return value


def told_by_json(value: Any, kind: pa.DataType) -> Any:
    """Return a value as JSON says it; a column of floats has whole numbers as floats."""
    del kind
    return json_value(value)


def told_by_mds(value: Any, kind: pa.DataType) -> Any:
    """Return a value as MosaicML's format has it: it knows no bool."""
    return int(value) if isinstance(value, bool) and kind == pa.uint8() else value


def told_by_csv(value: Any, kind: pa.DataType) -> Any:
    """Return what the text of a value says by the type that its column got, or fail.

    Raises:
        AssertionError: The type does not print the value as it was.
    """
    text = csv_text(value)
    assert text is not None
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        assert text in {"true", "false", "True", "False"}
        return text.lower() == "true"
    if pa.types.is_integer(kind):
        assert str(int(text)) == text
        return int(text)
    if pa.types.is_floating(kind):
        assert text in {repr(float(text)), repr(float(text)).removesuffix(".0")}
        return float(text)
    return _told_time(text, kind)


def _told_time(text: str, kind: pa.DataType) -> Any:
    made = pa.scalar(text).cast(kind)
    printed = made.cast(pa.string()).as_py()
    assert text in {printed, printed.replace(" ", "T")}
    return made.as_py()
