"""Folders such as year=2024 are columns."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from headrace.errors import UnsupportedColumnError
from headrace.storage.parquet import open_parquet
from headrace.storage.parquet.partitions import partition_columns
from storage.parquet.parquet_cases import all_samples, table_of, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_partitions_read_as_pyarrow_reads_them(tmp_path: Path) -> None:
    """Values of folders are typed columns at the end of the schema."""
    for year in (2023, 2024):
        for name in ("a b", "x/y"):
            folder = f"year={year}/name={name.replace(' ', '%20').replace('/', '%2F')}"
            write_file(tmp_path / folder / "0.parquet", table_of(range(year, year + 3)))
    wanted = pads.dataset(str(tmp_path), partitioning="hive").to_table()

    with open_parquet(str(tmp_path)) as dataset:
        found = all_samples(dataset)

    by: list[tuple[str, Literal["ascending", "descending"]]]
    by = [("year", "ascending"), ("name", "ascending"), ("number", "ascending")]
    assert wanted.schema.types == found.schema.types
    assert wanted.sort_by(by).to_pylist() == found.sort_by(by).to_pylist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2"], pa.int32()),
        (["01", "12"], pa.int32()),
        (["1", "3000000000"], pa.int64()),
        (["1", "x"], pa.string()),
        (["2024-02-29", "2024-03-01"], pa.date32()),
        (["2024-02-30", "2024-03-01"], pa.string()),
        (["99999999999999999999", "1"], pa.string()),
        (["1", "__HIVE_DEFAULT_PARTITION__"], pa.int32()),
    ],
)
def test_values_have_the_type_they_all_fit(values: list[str], kind: pa.DataType) -> None:
    """Whole numbers, dates, text: the first that all values are."""
    found = partition_columns([f"key={value}/a.parquet" for value in values])

    assert kind == found.schema.field("key").type


def test_null_partition_is_null() -> None:
    """Hive's name for null is null, and only then is the column nullable."""
    found = partition_columns(["k=__HIVE_DEFAULT_PARTITION__/a", "k=2024-01-01/a"])

    assert [None, dt.date(2024, 1, 1)] == found.column("k").to_pylist()
    assert found.schema.field("k").nullable


def test_partition_wins_over_the_file(tmp_path: Path) -> None:
    """A column that a file holds as well as its folder has the value of the folder."""
    write_file(tmp_path / "number=7" / "a.parquet", table_of(range(2)))

    with open_parquet(str(tmp_path)) as dataset:
        assert [7, 7] == all_samples(dataset).column("number").to_pylist()


def test_other_keys_are_refused(tmp_path: Path) -> None:
    """A file outside the folders that others are in is named."""
    write_file(tmp_path / "k=1" / "a.parquet", table_of(range(2)))
    write_file(tmp_path / "z.parquet", table_of(range(2)))

    with pytest.raises(UnsupportedColumnError, match=r"z\.parquet"):
        open_parquet(str(tmp_path))


@pytest.mark.parametrize("names", [["p.parquet", "y=1/q.parquet"], ["x=1/p.parquet", "q.parquet"]])
def test_a_file_beside_the_folders_is_refused_by_its_name(names: list[str]) -> None:
    """Whichever comes first."""
    with pytest.raises(UnsupportedColumnError, match=f"file {names[1]} is in"):
        partition_columns(names)


def test_partitions_of_spark_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    """What Spark wrote, partitioned and with nested columns, has the rows Spark reads."""
    query = """select id, cast(id as string) text, array(id, id + 1) items,
        named_struct('a', id, 'b', 'x') pair, map('k', id) pairs,
        timestamp'2024-01-01 00:00:00' at, cast(id as decimal(10, 2)) price,
        cast(id % 2 as int) part from range(0, 100)"""
    spark.sql(query).write.partitionBy("part").parquet(str(tmp_path / "spark"))
    wanted = sorted(
        tuple(row)
        for row in spark.read.parquet(str(tmp_path / "spark"))
        .select("id", "text", "items", "pair.a", "pairs.k", "price", "part")
        .collect()
    )

    with open_parquet(str(tmp_path / "spark")) as dataset:
        samples = all_samples(dataset).to_pylist()

    found = sorted(
        (
            s["id"],
            s["text"],
            s["items"],
            s["pair"]["a"],
            dict(s["pairs"])["k"],
            s["price"],
            s["part"],
        )
        for s in samples
    )
    assert wanted == found
    # Spark's default is INT96, of which Parquet does not say that it is UTC.
    assert {pa.timestamp("us")} == {dataset.schema.field("at").type}
