"""Every kind of column keeps its values, in one type for all files."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UnsupportedColumnError
from headrace.storage.parquet import open_parquet
from headrace.storage.parquet.plain_types import map_type, plain_type, wider_type
from storage.parquet.parquet_cases import all_samples, write_file

_NOW = dt.datetime(2026, 11, 21, 7, 30, 1, 2, tzinfo=dt.UTC)

_COLUMNS: dict[str, pa.Array[Any]] = {
    "int8": pa.array([1, None, -3], pa.int8()),
    "uint32": pa.array([1, None, 2**32 - 1], pa.uint32()),
    "half": pa.array(np.array([1, 2, 3], np.float16)),
    "flag": pa.array([True, None, False]),
    "decimal": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")]),
    "day": pa.array([dt.date(2026, 11, 21), None, dt.date(1, 1, 1)]),
    "time": pa.array([dt.time(1, 2, 3), None, dt.time(4)], pa.time64("us")),
    "zoned": pa.array([_NOW, None, _NOW], pa.timestamp("us", "Europe/Berlin")),
    "naive": pa.array([1, None, 2], pa.timestamp("ns")),
    "span": pa.array([1, None, 2], pa.duration("ms")),
    "bytes": pa.array([b"\xff", None, b""]),
    "fixed": pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
}

_LAYOUTS: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), pa.string()),
    "large_string": (pa.large_string(), pa.string()),
    "string_view": (pa.string_view(), pa.string()),
    "large_binary": (pa.large_binary(), pa.binary()),
    "dictionary_binary": (pa.dictionary(pa.int8(), pa.large_binary()), pa.binary()),
}


def _nulls(count: int, kind: pa.DataType) -> pa.Table:
    return pa.table({"c": pa.array([None] * count, kind)})


@pytest.mark.parametrize("name", list(_COLUMNS))
def test_column_keeps_values_and_nulls(tmp_path: Path, name: str) -> None:
    """A column of the kind comes back with its type, its values and its nulls."""
    path = write_file(tmp_path / "one.parquet", pa.table({name: _COLUMNS[name]}))

    with open_parquet(str(path)) as dataset:
        found = all_samples(dataset).column(name)

    assert pq.read_table(path).column(name).to_pylist() == found.to_pylist()
    assert str(_COLUMNS[name].type).replace("element", "item") == str(found.type)


@pytest.mark.parametrize("name", list(_LAYOUTS))
def test_layouts_become_plain(tmp_path: Path, name: str) -> None:
    """Dictionaries, views and 64-bit offsets are served as the plain type of their values."""
    stored, served = _LAYOUTS[name]
    values: list[str | bytes | None] = ["x", None, "y", "x"]
    if "binary" in name:
        values = [b"x", None, b"y", b"x"]
    column: pa.Array[Any] = pa.array(values, stored)
    nested = pa.ListArray.from_arrays(pa.array([0, 3, 4], pa.int32()), column)
    write_file(tmp_path / "1.parquet", pa.table({"c": column}))
    write_file(tmp_path / "2.parquet", pa.table({"c": pa.array(values, served)}))
    write_file(tmp_path / "nested.parquet", pa.table({"c": nested}))

    with open_parquet(str(tmp_path / "nested.parquet")) as dataset:
        assert [values[:3], values[3:]] == all_samples(dataset).column("c").to_pylist()
        assert pa.list_(served) == dataset.schema.field("c").type
    (tmp_path / "nested.parquet").unlink()
    with open_parquet(str(tmp_path)) as dataset:
        assert values * 2 == all_samples(dataset).column("c").to_pylist()
        assert served == dataset.schema.field("c").type


def test_nullable_only_where_nulls_are(tmp_path: Path) -> None:
    """A column of which no footer states a null is not nullable; one null anywhere suffices."""
    table = pa.table({"full": [1, 2], "holes": [1, 2]})
    write_file(tmp_path / "a.parquet", table)
    write_file(
        tmp_path / "b.parquet", pa.table({"full": [3], "holes": pa.array([None], pa.int64())})
    )

    with open_parquet(str(tmp_path)) as dataset:
        assert [False, True] == [field.nullable for field in dataset.schema]
        assert [1, 2, None] == all_samples(dataset).column("holes").to_pylist()


def test_without_statistics_columns_are_nullable(tmp_path: Path) -> None:
    """Where a footer says nothing of nulls, a column may hold some."""
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet", write_statistics=False)

    with open_parquet(str(tmp_path)) as dataset:
        assert dataset.schema.field("a").nullable


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (pa.int8(), pa.int32(), pa.int32()),
        (pa.uint16(), pa.uint8(), pa.uint16()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_(pa.int64())),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())]), None),
    ],
)
def test_compatible_types_widen(
    tmp_path: Path, first: pa.DataType, second: pa.DataType, joined: pa.DataType | None
) -> None:
    """Files whose types hold one another are served in the wider one."""
    write_file(tmp_path / "a.parquet", _nulls(2, first))
    write_file(tmp_path / "b.parquet", _nulls(1, second))

    with open_parquet(str(tmp_path)) as dataset:
        assert (joined or second) == dataset.schema.field("c").type
        assert [None] * 3 == all_samples(dataset).column("c").to_pylist()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.int64(), pa.float64()),
        (pa.string(), pa.binary()),
        (pa.int32(), pa.uint32()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.list_(pa.float32(), 2), pa.list_(pa.float32(), 3)),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
    ],
)
def test_incompatible_types_are_refused(
    tmp_path: Path, first: pa.DataType, second: pa.DataType
) -> None:
    """Types that do not hold one another are an error with file, column and both types."""
    write_file(tmp_path / "a.parquet", _nulls(2, first))
    write_file(tmp_path / "b.parquet", _nulls(1, second))

    with pytest.raises(UnsupportedColumnError) as caught:
        open_parquet(str(tmp_path))

    message = caught.value.message
    assert all(part in message for part in ("b.parquet", "'c'", str(first), str(second)))


def test_int96_keeps_far_years(tmp_path: Path) -> None:
    """Old timestamps of Spark are read in microseconds, so the year 9999 does not wrap around."""
    far = dt.datetime(9999, 12, 31, 23, 59, 59)  # noqa: DTZ001 - stored without a zone
    table = pa.table({"t": pa.array([far], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)

    with open_parquet(str(tmp_path)) as dataset:
        assert [far] == all_samples(dataset).column("t").to_pylist()


def test_fixed_shape_tensors_stay(tmp_path: Path) -> None:
    """A column of fixed-shape tensors is served as one."""
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    storage = pa.array([[1.0] * 6, [2.0] * 6], pa.list_(pa.float32(), 6))
    table = pa.table({"t": pa.ExtensionArray.from_storage(kind, storage)})
    write_file(tmp_path / "a.parquet", table)

    with open_parquet(str(tmp_path)) as dataset:
        assert kind == dataset.schema.field("t").type
        assert [[1.0] * 6, [2.0] * 6] == all_samples(dataset).column("t").to_pylist()


def test_columns_in_another_order_are_the_same_columns(tmp_path: Path) -> None:
    """The order of columns is that of the first file."""
    write_file(tmp_path / "a.parquet", pa.table({"a": [1], "b": [2]}))
    write_file(tmp_path / "b.parquet", pa.table({"b": [4], "a": [3]}))

    with open_parquet(str(tmp_path)) as dataset:
        assert [{"a": 1, "b": 2}, {"a": 3, "b": 4}] == all_samples(dataset).to_pylist()


_KINDS = st.sampled_from(
    [pa.int8(), pa.int64(), pa.uint8(), pa.float32(), pa.float64(), pa.string(), pa.null()]
)


@given(left=_KINDS, right=_KINDS)
def test_widening_has_no_sides(left: pa.DataType, right: pa.DataType) -> None:
    """The wider of two types is the same whichever comes first, and holds itself."""
    assert wider_type(left, right) == wider_type(right, left)
    assert left == wider_type(left, left)


@pytest.mark.parametrize(
    ("wrap", "value"),
    [
        (lambda kind: kind, [(1, 7)]),
        (pa.list_, [[(1, 7)]]),
        (lambda kind: pa.struct({"m": kind}), {"m": [(1, 7)]}),
    ],
)
def test_maps_widen_by_their_keys_and_values(
    tmp_path: Path, wrap: Callable[[pa.DataType], pa.DataType], value: object
) -> None:
    """Files whose maps differ in width, or in whether values are nullable, are one dataset."""
    first = wrap(map_type(pa.int16(), pa.field("value", pa.int64(), nullable=False)))
    second = wrap(map_type(pa.int32(), pa.field("value", pa.int32())))
    for name, kind in (("a", first), ("b", second)):
        table = pa.table({"c": pa.array([value, None], kind)})
        write_file(tmp_path / f"{name}.parquet", table)

    with open_parquet(str(tmp_path)) as dataset:
        found = all_samples(dataset).column("c")

    assert [value, None, value, None] == found.to_pylist()
    assert plain_type(wrap(map_type(pa.int32(), pa.field("value", pa.int64())))) == found.type


def test_maps_of_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Keys of text and of numbers have no type for both."""
    value = pa.field("value", pa.int64())
    keys: list[pa.DataType] = [pa.string(), pa.int64()]
    for name, key in enumerate(keys):
        table = pa.table({"c": pa.array([[]], map_type(key, value))})
        write_file(tmp_path / f"{name}.parquet", table)

    with pytest.raises(UnsupportedColumnError, match="column 'c' is map<int64"):
        open_parquet(str(tmp_path))


@pytest.mark.parametrize("kind", [pl.Int128, pl.UInt128])
def test_integers_of_128_bits_are_no_damage(tmp_path: Path, kind: type[pl.DataType]) -> None:
    """The file is intact, so the advice is to write another type, not to restore the file."""
    frame = pl.DataFrame({"n": pl.Series([1, 2], dtype=kind)})
    frame.write_parquet(tmp_path / "a.parquet")

    with pytest.raises(UnsupportedColumnError, match="more than 64 bits") as found:
        open_parquet(str(tmp_path))

    assert "a.parquet" in str(found.value)
    assert "restore" not in str(found.value)
