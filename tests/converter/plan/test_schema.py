"""Which columns can be stored is known before the job, and times keep their instant."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.ml.linalg import MatrixUDT, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types

from headrace.converter import write_shards
from headrace.converter.plan.schema import plan_columns
from headrace.errors import UnsupportedColumnError
from headrace.storage import open_dataset


def _only(kind: spark_types.DataType) -> spark_types.StructType:
    return spark_types.StructType([spark_types.StructField("x", kind)])


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (MatrixUDT(), "array with a function"),
        (spark_types.MapType(spark_types.StringType(), VectorUDT()), r"x\.value.*vector_to_array"),
        (spark_types.YearMonthIntervalType(), "cast it to int"),
        (spark_types.CalendarIntervalType(), "cast it to string"),
        (spark_types.StructType([]), "drop the column"),
    ],
)
def test_what_cannot_be_stored_is_refused(kind: spark_types.DataType, advice: str) -> None:
    """The column, however deep, and what to do with it."""
    with pytest.raises(UnsupportedColumnError, match=advice):
        plan_columns(_only(kind))


def test_a_variant_is_refused_where_spark_has_it() -> None:
    """Spark 4's variant has no type of its own for each sample."""
    variant = getattr(spark_types, "VariantType", None)
    if variant is None:
        pytest.skip("Spark has variants since 4.0")

    with pytest.raises(UnsupportedColumnError, match="variant_get"):
        plan_columns(_only(variant()))


def test_times_keep_their_instant_in_any_session(spark: SparkSession, tmp_path: Path) -> None:
    """A session's time zone is how it shows times, not what is stored; nested ones too."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Lima")
    try:
        frame = spark.sql(
            "select timestamp'2020-01-02 03:04:05' as t, "
            "map('a', array(named_struct('t', timestamp'2020-01-02 03:04:05'))) as m"
        )
        write_shards(frame, str(tmp_path))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")

    with open_dataset(str(tmp_path)) as dataset:
        [sample] = dataset.read_block(0).to_pylist()
        assert pa.timestamp("us", "UTC") == dataset.schema.field("t").type
    instant = dt.datetime(2020, 1, 2, 8, 4, 5, tzinfo=dt.UTC)
    assert {"t": instant, "m": [("a", [{"t": instant}])]} == sample


def test_a_time_of_day_is_stored_where_spark_has_it(spark: SparkSession, tmp_path: Path) -> None:
    """Spark 4.1's time, to the microsecond."""
    if not hasattr(spark_types, "TimeType"):
        pytest.skip("Spark has times of day since 4.1")
    write_shards(spark.sql("select time'12:30:00.123456' as t"), str(tmp_path))

    with open_dataset(str(tmp_path)) as dataset:
        assert [{"t": dt.time(12, 30, 0, 123456)}] == dataset.read_block(0).to_pylist()


def test_a_csv_file_with_dates_and_times_converts(spark: SparkSession, tmp_path: Path) -> None:
    """What Spark infers of a CSV file is stored with no cast."""
    source = tmp_path / "trips.csv"
    source.write_text("day,left,price\n2020-01-02,2020-01-02T03:04:05Z,1.5\n2020-01-03,,2\n")
    frame = spark.read.csv(str(source), header=True, inferSchema=True)
    write_shards(frame, str(tmp_path / "d"))

    with open_dataset(str(tmp_path / "d")) as dataset:
        samples = dataset.read_block(0).to_pylist()
    assert [
        {
            "day": dt.date(2020, 1, 2),
            "left": dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
            "price": 1.5,
        },
        {"day": dt.date(2020, 1, 3), "left": None, "price": 2.0},
    ] == samples
