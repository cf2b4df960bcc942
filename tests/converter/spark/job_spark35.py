"""Convert with whatever Spark this interpreter has, and print what came of it as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pyspark
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

from headrace.converter import Function, make_converter, write_shards
from headrace.converter.keys import conversion_key
from headrace.errors import BadArgumentError
from headrace.storage import open_dataset, open_store

LARGE_BYTES = 20_000  # more than a row's share of a batch, so that fillers follow it


def doubled(rows: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Fail at one row of all but small tables."""
    for row in rows:
        if row["id"] == 17:
            raise ValueError("no seventeen")
        yield {"twice": [row["id"], row["id"]]}


def _keys(spark: SparkSession, folder: str) -> list[Any]:
    """Tell what is unknown in a table's plan, and how many keys three plans have, one twice."""
    spark.range(9).selectExpr("id", "string(id) t").write.parquet(f"{folder}/parquet")
    table = spark.read.parquet(f"{folder}/parquet")
    conditions = ("t in ('a,b')", "t in ('a', 'b')", "t in ('a', 'b')", "split(t, ',')[0] = 'a'")
    keys = [conversion_key(table.where(text), {}) for text in conditions]
    literals = conversion_key(spark.sql("select * from values (1, 'a') as t(x, y)"), {})
    return [*keys[0].unknown, *literals.unknown, len({key.text for key in keys})]


def _samples(url: str) -> list[dict[str, Any]]:
    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return [row for block in blocks for row in block.to_pylist(maps_as_pydicts="strict")]


def main(folder: str) -> None:
    """Write each kind of thing once."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", f"{folder}/local")
        .getOrCreate()
    )
    table = spark.range(0, 200, 1, 2).selectExpr(
        "id",
        f"if(id % 50 = 0, repeat('x', {LARGE_BYTES}), cast(id as string)) as text",
        "if(id % 3 = 0, null, array(id, id + 1)) as pair",
        "named_struct('a', id, 'm', map('k', id)) as nested",
    )
    expected = [row.asDict(recursive=True) for row in table.collect()]
    write_shards(table, f"{folder}/table")
    write_shards(table.drop("nested"), f"{folder}/filled")
    splits = write_shards(table, f"{folder}/splits", splits={"a": 0.5, "b": 0.5}, shuffle_seed=1)
    vectors = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),)], ["v"])
    write_shards(vectors, f"{folder}/vectors")
    index = write_shards(spark.range(0, 100, 1, 2), f"{folder}/mds", format="mds")
    function = Function(doubled, "twice array<int>", over="rows")
    small = spark.range(0, 10, 1, 2)
    conversion = make_converter(small, cache_dir=f"{folder}/cache", function=function)
    found = {
        "version": pyspark.__version__,
        "table": expected == _samples(f"{folder}/table"),
        "filled": [{k: v for k, v in row.items() if k != "nested"} for row in expected]
        == _samples(f"{folder}/filled"),
        "splits": sum(manifest.sample_count for manifest in splits.values()),
        "vectors": _samples(f"{folder}/vectors"),
        "mds": int(index.sample_counts.sum()),
        "conversion": len(conversion),
        "keys": _keys(spark, folder),
    }
    try:
        write_shards(spark.range(0, 30, 1, 3), f"{folder}/failed", function=function)
    except BadArgumentError as error:
        found |= {"message": error.message, "row": error.metadata["row"]}
    found["left"] = list(open_store(f"{folder}/failed").list())
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
