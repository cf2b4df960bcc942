"""Run by test_spark_java.py where there is no Java but that of the extra: convert a DataFrame.

As a user would write it, but for where Spark's files lie: the session is an ordinary one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from headrace.converter import Function, write_shards
from headrace.storage import open_dataset


def _double(rows: Iterator[Mapping[str, int]]) -> Iterator[dict[str, int]]:
    for row in rows:
        yield {"key": row["key"], "total": 2 * row["total"]}


def main(folder: str) -> None:
    """Shuffle, run Python in tasks, write shards, and print what became of it as JSON."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )
    rows = spark.range(1000).select((sf.col("id") % 10).alias("key"), "id")
    totals = rows.groupBy("key").agg(sf.sum("id").alias("total")).repartition(2, "key")
    # Encodings, packing and the names of days are modules that a small runtime may lack.
    days = totals.withColumn("day", sf.date_format(sf.lit("2024-02-29").cast("timestamp"), "EEEE"))
    days.write.option("compression", "gzip").csv(f"{folder}/csv", encoding="UTF-16LE")
    function = Function(_double, "key long, total long", over="rows")
    write_shards(totals, f"{folder}/out", function=function)
    with open_dataset(f"{folder}/out") as dataset:
        found = [dataset.read_block(block).to_pylist() for block in range(dataset.block_count)]
    jvm = spark._jvm
    assert jvm is not None
    java = str(jvm.System.getProperty("java.version"))
    rows_found = sorted((row["key"], row["total"]) for block in found for row in block)
    sys.stdout.write(json.dumps({"java": java, "rows": rows_found}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
