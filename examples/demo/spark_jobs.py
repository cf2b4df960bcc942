"""Read both data sets with Spark and convert them to headrace datasets.

    python -m demo.spark_jobs --digits FOLDER --flights flights.csv --to s3://bucket/prefix

This is all that a user of Spark has to write: two DataFrames, and `write_shards` for each split.
Everything up to the shards is plain Spark SQL; no row becomes a Python object.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.column import Column

from headrace.converter import write_shards

# A flight is late when it arrives more than 15 minutes after its schedule, as airlines count.
LATE_AFTER_MINUTES = 15
_TEST_PERCENT = 10
_SHARDS = {"digits": 4, "flights": 8}


def digits_frame(spark: SparkSession, folder: Path) -> DataFrame:
    """Read ``<label>/<name>.png`` files as samples.

    Returns:
        image (binary, a PNG file), label (int, 0 to 9), name (string).
    """
    files = (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", "*.png")
        .option("recursiveFileLookup", "true")
        .load(str(folder))
    )
    return files.select(
        sf.col("content").alias("image"),
        sf.regexp_extract("path", r"/(\d)/[^/]+$", 1).cast("int").alias("label"),
        sf.regexp_extract("path", r"([^/]+)\.png$", 1).alias("name"),
    )


def flights_frame(spark: SparkSession, table: Path) -> DataFrame:
    """Read the CSV file and make features of what is known when a flight leaves its gate.

    Cancelled flights have no arrival and are left out.

    Returns:
        numbers (8 floats of about unit size), carrier, origin and destination (int, counted from
        0 in the order of their codes), late (int, 0 or 1), test (boolean: belongs to the test).
    """
    flights = (
        spark.read.csv(str(table), header=True, inferSchema=True, nullValue="NA")
        .where(sf.col("arr_delay").isNotNull())
        .withColumn("date", sf.make_date("year", "month", "day"))
    )
    key = sf.xxhash64("time_hour", "carrier", "flight", "origin")
    carrier, origin, destination = _codes(flights, "carrier", "origin", "dest")
    return flights.select(
        _numbers().alias("numbers"),
        carrier.alias("carrier"),
        origin.alias("origin"),
        destination.alias("destination"),
        (sf.col("arr_delay") > LATE_AFTER_MINUTES).cast("int").alias("late"),
        (sf.pmod(key, sf.lit(100)) < _TEST_PERCENT).alias("test"),
    )


def convert_digits(spark: SparkSession, folder: Path, url: str) -> None:
    """Write ``url/digits-train`` and ``url/digits-test``."""
    for split in ("train", "test"):
        frame = digits_frame(spark, folder / split).repartition(_SHARDS["digits"])
        _convert(frame, f"{url}/digits-{split}")


def convert_flights(spark: SparkSession, table: Path, url: str) -> None:
    """Write ``url/flights-train`` and ``url/flights-test``."""
    frame = flights_frame(spark, table).repartition(_SHARDS["flights"]).cache()
    _convert(frame.where("not test").drop("test"), f"{url}/flights-train")
    _convert(frame.where("test").drop("test"), f"{url}/flights-test")
    frame.unpersist()


def _convert(frame: DataFrame, url: str) -> None:
    manifest = write_shards(frame, url, mode="overwrite")
    click.echo(f"{url}: {manifest.sample_count} samples in {manifest.shard_count} shards")


def _numbers() -> Column:
    hour = sf.col("hour") + sf.col("minute") / 60
    numbers = [
        sf.col("dep_delay") / 60,
        sf.least(sf.col("dep_delay"), sf.lit(30)) / 15,
        sf.col("distance") / 1000,
        *_circle(hour / 24),
        *_circle(sf.dayofyear("date") / 365),
        sf.dayofweek("date").isin(1, 7).cast("int"),
    ]
    return sf.array(*numbers).cast("array<float>")


def _circle(turns: Column) -> tuple[Column, Column]:
    """Put a time that comes round again on a circle, so that 23:59 lies beside 0:00."""
    return sf.sin(2 * math.pi * turns), sf.cos(2 * math.pi * turns)


def _codes(frame: DataFrame, *names: str) -> list[Column]:
    """Number the distinct values of string columns from 0, in their sorted order."""
    distinct = frame.agg(*(sf.sort_array(sf.collect_set(name)).alias(name) for name in names))
    values = distinct.collect()[0]
    return [
        (sf.array_position(sf.lit(values[name]), sf.col(name)) - 1).cast("int") for name in names
    ]


@contextmanager
def local_spark(scratch: Path) -> Iterator[SparkSession]:
    """Run Spark on two cores of this machine; all its files stay in ``scratch``."""
    # Executors otherwise start whichever python3 is first on PATH, and the JVM otherwise
    # listens on the machine's outer address.
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    # Without this each JVM leaves a folder in /tmp.
    os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:-UsePerfData"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("headrace demo")
        .config("spark.driver.extraJavaOptions", f"-XX:-UsePerfData -Djava.io.tmpdir={scratch}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # Many small images: the default counts 4 MiB for opening each.
        .config("spark.sql.files.openCostInBytes", "65536")
        .config("spark.sql.session.timeZone", "America/New_York")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.option("--digits", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--flights", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--to", "url", required=True, help="Folder or s3:// prefix to write under.")
@click.option("--scratch", type=click.Path(path_type=Path), required=True, help="Spark's files.")
def main(digits: Path, flights: Path, url: str, scratch: Path) -> None:
    """Convert both data sets, two splits each."""
    with local_spark(scratch) as spark:
        convert_digits(spark, digits, url)
        convert_flights(spark, flights, url)


if __name__ == "__main__":
    main()
