"""Convert through a local Spark Connect server, and print what came of it as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

from headrace.converter import Function, Progress, write_shards
from headrace.converter.keys import conversion_key
from headrace.errors import BadArgumentError


def fragile(rows: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Fail at one row."""
    for row in rows:
        if row["id"] == 17:
            raise ValueError("no seventeen")
        yield {"id": row["id"]}


def main(folder: str) -> None:
    """Write splits and vectors, and let a function fail."""
    spark = (
        SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    seen: list[Progress] = []
    frame = spark.range(0, 1000, 1, 3)
    splits = write_shards(
        frame, f"{folder}/splits", splits={"a": 0.5, "b": 0.5}, shuffle_seed=1, progress=seen.append
    )
    small = write_shards(spark.range(0, 100, 1, 12), f"{folder}/small")
    vectors = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),)], ["v"])
    write_shards(vectors, f"{folder}/vectors")
    try:
        function = Function(fragile, "id long", over="rows")
        write_shards(spark.range(0, 30, 1, 3), f"{folder}/failed", function=function)
    except BadArgumentError as error:
        found = {
            "kind": str(type(spark)),
            "counts": {name: split.sample_count for name, split in splits.items()},
            "tasks": [seen[-1].tasks_done, seen[-1].tasks_total],
            "shards": seen[-1].shard_count,
            "message": error.message,
            "merged": [small.shard_count, small.sample_count],
            "row": error.metadata["row"],
            "keys": [conversion_key(frame, {}, name=name).text for name in (None, None, "a", "a")],
        }
        sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
