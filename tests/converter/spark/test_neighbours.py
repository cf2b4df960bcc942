"""Tasks take several small neighbouring partitions: the same rows, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.converter import write_shards
from headrace.converter.spark.neighbours import LEAST_TASKS, by_neighbours, groups_of
from headrace.storage import open_dataset

_FRAMES: dict[str, Callable[[SparkSession], DataFrame]] = {
    "range": lambda spark: spark.range(0, 500, 1, 40),
    "shuffled": lambda spark: spark.range(500).repartition(40),
    "cached": lambda spark: spark.range(0, 500, 1, 40).cache(),
    "sorted": lambda spark: spark.range(500).repartition(40).sort("id"),
    "vectors": lambda spark: spark.range(0, 50, 1, 40).select(
        "id", array_to_vector(sf.array(sf.col("id").cast("double"))).alias("v")
    ),
}


@pytest.mark.parametrize("kind", list(_FRAMES))
def test_order_is_that_of_partitions(spark: SparkSession, kind: str) -> None:
    """Rows come as they would have; partitions that lie on known hosts stay in their order too."""
    frame = _FRAMES[kind](spark)
    wanted = [row["id"] for row in frame.collect()]
    grouped = by_neighbours(frame, task_bytes=1 << 20, least_tasks=3)
    again = by_neighbours(frame, task_bytes=1 << 20, least_tasks=3)
    frame.unpersist()

    # Adaptive execution has joined the partitions of the sort itself.
    assert (1 if kind == "sorted" else 3) == grouped.rdd.getNumPartitions()
    assert wanted == [row["id"] for row in grouped.collect()]
    sizes = [grouped.rdd.glom().map(len).collect(), again.rdd.glom().map(len).collect()]
    assert sizes[0] == sizes[1]


def test_what_nobody_can_size_stays(spark: SparkSession) -> None:
    """Rows of an RDD, whose size Spark does not know, come back as they are."""
    frame = spark.sparkContext.parallelize([(at,) for at in range(50)], 40).toDF(["id"])

    assert frame is by_neighbours(frame, task_bytes=1 << 20, least_tasks=3)


def test_groups_follow_from_partitions_and_bytes() -> None:
    """Few partitions, large ones, and sizes that Spark does not know are left alone."""
    assert LEAST_TASKS == groups_of(10_000, 8_000_000, task_bytes=1 << 26)
    assert 1600 == groups_of(10_000, 1600 << 26, task_bytes=1 << 26)
    assert groups_of(2 * LEAST_TASKS - 1, 1, task_bytes=1 << 26) is None
    assert groups_of(10_000, 10_000 << 26, task_bytes=1 << 26) is None
    assert groups_of(10_000, 2**63 - 1, task_bytes=1 << 26) is None


@pytest.mark.long
def test_thousands_of_partitions_become_one_shard(spark: SparkSession, tmp_path: Path) -> None:
    """Tiny partitions, tasks that take several of them, and a merge: each row once, in order."""
    manifest = write_shards(spark.range(0, 20_000, 1, 2000), str(tmp_path))
    with open_dataset(str(tmp_path)) as dataset:
        found = [dataset.read_block(at).column("id").to_pylist() for at in range(1)]

    assert 1 == manifest.shard_count
    assert list(range(20_000)) == found[0]
