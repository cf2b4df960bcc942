"""Write by ``df.write.format("headrace")``, and print what came of it as JSON.

Tasks are tried three times. Each first attempt of one partition fails at its end, when it has
written shards.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from headrace.storage import open_dataset

_TRIES = 3


def unlucky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, and fail once."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 1 and not context.attemptNumber():
        raise ValueError("unlucky")


def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, and fail whenever it is tried."""
    yield from batches
    context = TaskContext.get()
    if context is not None and context.partitionId() == 1:
        raise ValueError("broken for good")


def _write(df: DataFrame, url: str, mode: str, **options: str) -> None:
    df.write.format("headrace").mode(mode).options(**options).save(url)


def _error(df: DataFrame, url: str, **options: str) -> str:
    try:
        _write(df, url, "append", **options)
    except Exception as error:  # noqa: BLE001 - Spark's, of many classes
        return str(error)
    return "none"


def main(folder: str, kind: str) -> None:
    """Append, overwrite, and let jobs fail."""
    builder = SparkSession.builder
    master = f"local[2,{_TRIES}]"
    builder = builder.remote(master) if kind == "connect" else builder.master(master)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.range(0, 1_000, 1, 3)
    url = f"{folder}/table"
    counts = []
    for mode, few in (("append", 10), ("append", 1_000), ("overwrite", 1_000), ("append", 5)):
        chosen = frame.where(f"id < {few}").mapInArrow(unlucky, "id long")
        _write(chosen, url, mode, shard_bytes="1024", block_bytes="512")
        with open_dataset(url) as dataset:
            counts.append(dataset.sample_count)
    files = {str(path) for path in Path(url).rglob("*")}
    errors = [
        _error(frame.mapInArrow(broken, "id long"), url),
        _error(frame, url, types='{"id": "uint8"}'),
        _error(frame, url, compresion="zstd"),
        _error(frame.selectExpr("id", "make_interval(1) as span"), url),
    ]
    with open_dataset(url) as dataset:
        rows = [
            row["id"]
            for block in range(dataset.block_count)
            for row in dataset.read_block(block).to_pylist()
        ]
    found = {
        "counts": counts,
        "errors": errors,
        "left": sorted({str(path) for path in Path(url).rglob("*")} ^ files),
        "rows": rows,
        "kind": str(type(spark)),
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
