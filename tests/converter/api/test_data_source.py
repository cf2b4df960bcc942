"""The writer of Spark's data source, without Spark: what it is told, and what it leaves."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as spark
from pyspark.sql.datasource import WriterCommitMessage

from headrace.converter.api.data_source import Shards, ShardWriter, shard_writer
from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    HeadraceError,
    NotADatasetError,
    UnsupportedColumnError,
)
from headrace.storage import collect_garbage, open_dataset, open_store, plan_gc

_SCHEMA = spark.StructType([spark.StructField("x", spark.LongType())])


def _shards(writer: ShardWriter, partition: int, attempt: int, *numbers: int) -> Shards:
    """Write a partition as an attempt of a task does."""
    batch = pa.record_batch({"x": pa.array(numbers)})
    stem = f"{partition:05d}-{writer.task.job}{attempt:04x}"
    rows = writer.task.rows(iter([batch]), partition=partition, stem=stem)
    return Shards([row for one in rows for row in one.to_pylist()])


def _numbers(url: Path) -> list[int]:
    with open_dataset(str(url)) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return [row["x"] for block in blocks for row in block.to_pylist()]


def test_only_accepted_attempts_are_committed(tmp_path: Path) -> None:
    """A speculative attempt that finished too is swept; the writer was sent to another process."""
    writer = shard_writer(_SCHEMA, {"path": str(tmp_path)}, mode="append")
    second: list[WriterCommitMessage | None] = [_shards(writer, 1, 2, 3, 4)]
    _shards(writer, 1, 3, 3, 4)
    first = _shards(writer, 0, 1, 1, 2)
    pickle.loads(pickle.dumps(writer)).commit([*second, first])

    assert [1, 2, 3, 4] == _numbers(tmp_path)
    assert 2 == len(list((tmp_path / "shards").iterdir()))
    assert [] == list(tmp_path.glob("manifests/writing-*"))


def test_an_aborted_job_leaves_nothing(tmp_path: Path) -> None:
    """Neither shards, of attempts that Spark no longer knows, nor notes."""
    writer = shard_writer(_SCHEMA, {"path": str(tmp_path)}, mode="overwrite")
    _shards(writer, 0, 1, 1, 2)
    writer.abort([None])

    assert [] == list(open_store(str(tmp_path)).list())


def test_a_task_that_outlives_its_job_leaves_nothing(tmp_path: Path) -> None:
    """Spark aborts a job while tasks of other partitions still write."""
    writer = shard_writer(_SCHEMA, {"path": str(tmp_path)}, mode="append")
    writer.abort([None])
    late = _shards(writer, 1, 2, 3, 4)

    with pytest.raises(CommitConflictError, match=r"has ended; what this task wrote is removed"):
        writer.finished(late.rows)
    assert [] == list(open_store(str(tmp_path)).list())


def test_gc_leaves_what_a_job_writes(tmp_path: Path) -> None:
    """Its files are not to be removed while it runs, however young gc removes files."""
    before = shard_writer(_SCHEMA, {"path": str(tmp_path)}, mode="append")
    before.commit([_shards(before, 0, 1, 0)])
    writer = shard_writer(_SCHEMA, {"path": str(tmp_path)}, mode="append")
    found = _shards(writer, 0, 1, 1, 2)
    store = open_store(str(tmp_path))
    collect_garbage(store, plan_gc(store, older_than_s=0, keep=1, now_s=time.time()))
    writer.commit([found])

    assert [0, 1, 2] == _numbers(tmp_path)


def test_a_job_whose_note_is_gone_commits_nothing(tmp_path: Path) -> None:
    """After a day gc may have removed its first shards."""
    writer = shard_writer(_SCHEMA, {"path": str(tmp_path)}, mode="append")
    found = _shards(writer, 0, 1, 1, 2)
    open_store(str(tmp_path)).delete(writer.note)

    with pytest.raises(CommitConflictError, match=r"ran for longer than 24 hours.*write it again"):
        writer.commit([found])
    with pytest.raises(NotADatasetError):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({}, BadArgumentError, "give the URL of the dataset"),
        ({"path": "PATH", "access_key": "AKIA"}, BadArgumentError, "no option 'access_key'"),
        ({"path": "PATH", "shard_bytes": "1.5"}, BadArgumentError, "expected a whole number"),
        ({"path": "PATH", "Types": "x"}, BadArgumentError, "expected a mapping as JSON"),
        ({"path": "PATH", "types": '{"y": "int8"}'}, HeadraceError, "types names y"),
    ],
)
def test_options_are_checked_before_the_job(
    tmp_path: Path, options: dict[str, str], kind: type[HeadraceError], text: str
) -> None:
    """Each by its name, in any case of letters; nothing is written."""
    given = {name: str(tmp_path) if value == "PATH" else value for name, value in options.items()}
    with pytest.raises(kind, match=text):
        shard_writer(_SCHEMA, given, mode="append")
    assert [] == list(open_store(str(tmp_path)).list())


def test_columns_are_checked_before_the_job(tmp_path: Path) -> None:
    """Those that cannot be stored."""
    months = spark.StructType([spark.StructField("m", spark.YearMonthIntervalType())])
    with pytest.raises(UnsupportedColumnError, match="'m'"):
        shard_writer(months, {"path": str(tmp_path)}, mode="append")


def test_rows_are_those_of_write_shards(spark: SparkSession, tmp_path: Path) -> None:
    """All kinds of columns, nulls in them, in the order of the partitions."""
    frame = spark.range(0, 50, 1, 3).selectExpr(
        "if(id % 5 = 0, null, id) as number",
        "cast(id as string) as `a.b`",
        "array(cast(id as float), 1f) as vector",
        "named_struct('u', id, 'v', array(cast(id as string), null)) as pair",
        "map('k', id) as mapping",
        "cast(id as decimal(12, 3)) as amount",
        "date_add(date'2024-01-01', cast(id as int)) as day",
        "timestamp_micros(id) as moment",
        "encode(cast(id as string), 'utf-8') as blob",
    )
    frame.write.format("headrace").mode("append").save(str(tmp_path))

    with open_dataset(str(tmp_path)) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    wanted = frame.toArrow()
    assert wanted.column("number").to_pylist() == [
        number for block in blocks for number in block.column("number").to_pylist()
    ]
    assert wanted.to_pylist() == pa.Table.from_batches(blocks).to_pylist()
