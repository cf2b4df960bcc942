"""What is handed from Spark to tasks, and in batches of how many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors

from headrace.converter.api.write_shards import write_shards
from headrace.converter.spark.job import run_job
from headrace.converter.tasks.handover import (
    Handover,
    bounded_handover,
    plain_handover,
    taken_over,
)
from headrace.storage import open_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
SHARE = 100  # bytes of a record, with Spark's 10,000 records a batch
BATCH_BYTES = SHARE * 10_000


def _batches(handover: Handover) -> list[dict[str, Any]]:
    """Return rows, records and bytes of each batch that tasks are given."""
    names = handover.names

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = next(taken_over(iter([batch]), names), batch.slice(0, 0))
            content = rows.to_pylist()
            size = sum(len(row["text"] or "") for row in content)
            ids = [row["id"] for row in content]
            found = [{"ids": ids, "records": batch.num_rows, "bytes": size}]
            yield pa.RecordBatch.from_pylist(found)

    job = handover.df.mapInArrow(measure, "ids array<long>, records long, bytes long")
    return [row.asDict() for row in run_job(job, properties=handover.properties)]


def _texts(spark: SparkSession, lengths: str) -> DataFrame:
    return spark.range(0, 4000, 1, 1).selectExpr("id", f"repeat('x', {lengths}) as text")


def test_large_rows_fill_a_batch_by_their_bytes(spark: SparkSession) -> None:
    """Rows of 50 to 20,000 bytes, the large ones last: no batch exceeds its bytes by two rows."""
    frame = _texts(spark, "cast(if(id < 2000, 50, 20000) as int)")

    found = _batches(bounded_handover(frame, batch_bytes=BATCH_BYTES))

    assert list(range(4000)) == [sample for batch in found for sample in batch["ids"]]
    assert max(batch["records"] for batch in found) <= 10_000
    assert max(batch["bytes"] for batch in found) <= BATCH_BYTES + 20_000
    assert len(found[0]["ids"]) > 2000  # small rows are not cut smaller for it


def test_a_bound_that_the_session_sets_is_kept(spark: SparkSession) -> None:
    """Spark's own setting cuts batches, whoever made it."""
    frame = _texts(spark, "100")
    spark.conf.set(MAX_BYTES, "100000")
    try:
        found = _batches(bounded_handover(frame))
    finally:
        spark.conf.unset(MAX_BYTES)

    assert max(batch["bytes"] for batch in found) < 200_000
    assert 1 == len(_batches(bounded_handover(frame)))


def test_the_setting_is_of_the_job_alone(spark: SparkSession) -> None:
    """What the user's thread runs next has Spark's own bound again."""
    before = spark.conf.get(MAX_BYTES), spark.sparkContext.getLocalProperty(MAX_BYTES)
    _batches(bounded_handover(_texts(spark, "1")))

    assert before == (spark.conf.get(MAX_BYTES), spark.sparkContext.getLocalProperty(MAX_BYTES))


@pytest.mark.parametrize(
    ("columns", "filled"),
    [
        (["id", "date'2024-01-01' as d", "cast(id as decimal(20, 2)) as m"], False),
        (["named_struct('a', id, 's', 'x') as s"], True),
        (["id", "array(id) as a"], True),
        (["cast('x' as binary) as b"], True),
    ],
)
def test_fillers_come_where_sizes_vary(
    spark: SparkSession,
    columns: list[str],
    filled: bool,  # noqa: FBT001 - of a parameter
) -> None:
    """Numbers alone need none, and neither asks Spark to add up buffers."""
    handover = bounded_handover(spark.range(1).selectExpr(*columns))

    assert filled == (len(handover.df.columns) > len(columns))
    assert handover.properties


@pytest.mark.parametrize(
    "column",
    ["map('a', id) as m", "array('a') as a", "array(array(id)) as a", "named_struct('m', map()) s"],
)
def test_what_cannot_be_sized_is_left_to_spark(spark: SparkSession, column: str) -> None:
    """Maps and arrays of what varies are handed over as Spark bounds them."""
    frame = spark.range(1).selectExpr("id", column)

    assert not bounded_handover(frame).properties
    assert frame.columns == list(plain_handover(frame).names)


def test_vectors_are_left_to_spark(spark: SparkSession) -> None:
    """What a user-defined type holds is not looked into."""
    frame = spark.createDataFrame([(Vectors.dense([1.0]),)], ["v"])

    assert not bounded_handover(frame).properties
    assert frame.columns == list(plain_handover(frame).names)


def test_fillers_leave_no_trace_in_a_dataset(spark: SparkSession, tmp_path: Path) -> None:
    """Every kind of column, names that are alike, nulls, rows larger than their share."""
    frame = spark.range(0, 50, 1, 2).selectExpr(
        "id as `a.b`",
        "repeat('é', cast(id * 400 as int)) as `A`",
        "if(id % 3 = 0, null, sequence(0, cast(id * 100 as int))) as `x`",
        "if(id % 5 = 0, null, named_struct('s', repeat('y', 9000), 'n', id)) as `s`",
    )
    expected = [row.asDict(recursive=True) for row in frame.collect()]

    assert len(bounded_handover(frame).df.columns) == 5
    write_shards(frame, str(tmp_path))

    with open_dataset(str(tmp_path)) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    assert expected == [row for block in blocks for row in block.to_pylist()]
