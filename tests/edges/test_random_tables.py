"""Random tables through every format: the rows that training sees are those that went in."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from edges.random_tables import (
    RandomTable,
    as_arrow,
    as_csv,
    as_json,
    as_mds,
    as_parquet,
    expected_rows,
    random_table,
    seen_by_training,
    told_as_is,
    told_by_csv,
    told_by_json,
    told_by_mds,
)
from headrace.converter import write_shards
from headrace.errors import HeadraceError
from support.running import server_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = 25  # tables that one server serves at a time


@dataclass(frozen=True)
class Way:
    """A way from a table to a dataset, what it cannot express, and what its values say."""

    convert: Callable[[RandomTable, Path, random.Random], None]
    refused: Callable[[RandomTable], bool]
    told: Callable[[Any, pa.DataType], Any] = told_as_is


def _holds_nul(table: RandomTable) -> bool:
    return any("\0" in value for row in table.rows for value in row if isinstance(value, str))


WAYS: Mapping[str, Way] = {
    "csv": Way(as_csv, _holds_nul, told_by_csv),
    "json": Way(as_json, lambda _: False, told_by_json),
    "parquet": Way(as_parquet, lambda _: False),
    "mds": Way(
        as_mds, lambda table: table.has_nulls or table.has("date") or table.has("time"), told_by_mds
    ),
    "arrow": Way(as_arrow, lambda _: False),
}


def _table(way: str, seed: int) -> RandomTable:
    """Return one of the kinds that the format knows; of MDS a quarter has nulls."""
    nested = way not in {"csv", "json"}
    return random_table(seed, nested=nested, nulls=way != "mds" or seed % 4 == 0)


def _check(way: str, seeds: range, folder: Path) -> tuple[int, int]:
    """Return how many tables went through, and how many were refused."""
    written: dict[str, RandomTable] = {}
    refused = 0
    for seed in seeds:
        table, name = _table(way, seed), f"t{seed}"
        (folder / name).mkdir()
        if WAYS[way].refused(table):
            with pytest.raises(HeadraceError):
                WAYS[way].convert(table, folder / name, random.Random(seed))
            refused += 1
        else:
            WAYS[way].convert(table, folder / name, random.Random(seed))
            written[name] = table
    _compare({folder / name / "out": table for name, table in written.items()}, WAYS[way].told)
    return len(written), refused


def _compare(tables: Mapping[Path, RandomTable], told: Callable[[Any, pa.DataType], Any]) -> None:
    urls = {f"d{at}": str(url) for at, url in enumerate(tables)}
    with server_of(urls) as server:
        for name, (url, table) in zip(urls, tables.items(), strict=True):
            found = seen_by_training(server.address, name, table.kinds)
            assert expected_rows(table, url, told) == found, (url, table.kinds)


@pytest.mark.parametrize("way", WAYS)
def test_training_sees_the_rows_that_went_in(way: str, tmp_path: Path) -> None:
    """Null for null, and every bit of every number; what a format cannot say is refused."""
    written, refused = _check(way, range(12), tmp_path)

    assert (12, True) == (written + refused, written > 2)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS)
def test_training_sees_the_rows_of_5000_tables(way: str, tmp_path: Path) -> None:
    """As the short test, of 5,000 seeds."""
    totals = [0, 0]
    for start in range(1000, 6000, GROUP):
        (tmp_path / str(start)).mkdir()
        for at, count in enumerate(_check(way, range(start, start + GROUP), tmp_path / str(start))):
            totals[at] += count

    print(f"{way}: {totals[0]} tables, {totals[1]} refused")  # noqa: T201 - the report of a long test
    assert totals[0] > (1000 if way == "mds" else 4000)


def _side_by_side(tables: Sequence[RandomTable]) -> RandomTable:
    """Return one table of the columns of many, since a job of Spark takes a second."""
    kinds = {
        f"{at} {name}": kind
        for at, table in enumerate(tables)
        for name, kind in table.kinds.items()
    }
    empty = [(None,) * len(table.kinds) for table in tables]
    rows = [
        tuple(
            itertools.chain.from_iterable(
                row or none for row, none in zip(parts, empty, strict=True)
            )
        )
        for parts in itertools.zip_longest(*(table.rows for table in tables))
    ]
    return RandomTable(kinds, rows)


def _check_spark(spark: SparkSession, seeds: range, folder: Path) -> None:
    from pyspark.sql import types as t  # noqa: PLC0415 - only with Spark

    spark_types = {
        "int": t.LongType(),
        "float": t.DoubleType(),
        "bool": t.BooleanType(),
        "text": t.StringType(),
        "digits": t.StringType(),
        "date": t.DateType(),
        "time": t.TimestampNTZType(),
        "bytes": t.BinaryType(),
        "ints": t.ArrayType(t.LongType(), containsNull=False),
    }
    table = _side_by_side([random_table(seed) for seed in seeds])
    schema = t.StructType(
        [t.StructField(name, spark_types[kind]) for name, kind in table.kinds.items()]
    )
    write_shards(spark.createDataFrame(list(table.rows), schema), str(folder / "out"))
    _compare({folder / "out": table}, told_as_is)


def test_training_sees_the_rows_of_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    """Twelve tables side by side in one DataFrame."""
    _check_spark(spark, range(12), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_training_sees_the_rows_of_5000_tables_of_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A hundred tables side by side in each of fifty DataFrames."""
    for start in range(1000, 6000, 100):
        (tmp_path / str(start)).mkdir()
        _check_spark(spark, range(start, start + 100), tmp_path / str(start))
