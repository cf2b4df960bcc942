"""What Spark writes in MosaicML Streaming's format, read by the real package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.converter import Settings, WriteOptions, write_shards
from headrace.storage import open_dataset
from storage.mds.mds_corpus import rendered
from storage.mds.mds_values import rendered_samples
from storage.mds.mosaic_environment import mosaic

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SAMPLES = 500


def _frame(spark: SparkSession, start: int, stop: int) -> DataFrame:
    return spark.range(start, stop, 1, 3).selectExpr(
        "id",
        "cast(id / 2 as float) as half",
        "concat('número ', cast(id as string)) as text",
        "encode(repeat('b', cast(id % 7 as int)), 'utf-8') as bytes",
    )


def _expected(frame: DataFrame) -> list[dict[str, Any]]:
    return [rendered(row.asDict()) for row in frame.collect()]


@pytest.mark.long
@pytest.mark.timeout(1500)  # of which most is for making the environment
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_mosaic_reads_what_spark_writes(
    spark: SparkSession, tmp_path: Path, compression: str
) -> None:
    """All samples in the order of partitions, over many shards, and then what is appended."""
    first, second = _frame(spark, 0, SAMPLES), _frame(spark, SAMPLES, 2 * SAMPLES)
    settings: Settings = {"write": WriteOptions(compression=compression, shard_bytes=4096)}
    write_shards(first, str(tmp_path), format="mds", **settings)
    settings["mode"] = "append"
    write_shards(second, str(tmp_path), format="mds", **settings)
    read = mosaic().read(tmp_path)

    with open_dataset(str(tmp_path)) as dataset:
        assert dataset.shard_count > 6
        assert read == rendered_samples(dataset)
    assert 2 * SAMPLES == len(read)
    assert [row["text"] for row in read] == [
        row["text"] for row in _expected(first) + _expected(second)
    ]
