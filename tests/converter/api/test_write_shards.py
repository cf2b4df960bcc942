"""DataFrames become datasets, exactly once, or nothing."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.converter import Progress, WriteOptions, write_shards
from headrace.errors import (
    BadArgumentError,
    ColumnNotFoundError,
    ConfigurationError,
    DatasetExistsError,
    StoreRefusedError,
    UnsupportedColumnError,
)
from headrace.storage import RetryPolicy, StoreOptions, open_dataset, open_store
from support.s3 import S3

_Rows = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _samples(url: str) -> list[dict[str, object]]:
    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return pa.Table.from_batches(blocks).to_pylist()


def _frame(spark: SparkSession, sample_count: int, partitions: int = 3) -> DataFrame:
    number = sf.col("id")
    return spark.range(0, sample_count, 1, partitions).select(
        number.alias("number"),
        number.cast("byte").alias("small"),
        (number / 3).cast("float").alias("ratio"),
        (number % 2 == 0).alias("even"),
        sf.concat(sf.lit("sample "), number.cast("string")).alias("name"),
        sf.encode(number.cast("string"), "utf-8").alias("blob"),
        sf.when(number % 5 != 0, number).alias("maybe"),
        sf.array(number, number + 1, number + 2).cast("array<float>").alias("vector"),
        sf.slice(sf.array(number, number, number), 1, (number % 4).cast("int")).alias("ragged"),
        sf.transform(sf.sequence(sf.lit(0), sf.lit(5)), lambda pixel: pixel + number)
        .cast("array<short>")
        .alias("image"),
    )


def _expected(number: int) -> dict[str, object]:
    return {
        "number": number,
        "small": number,
        "ratio": pytest.approx(number / 3),
        "even": number % 2 == 0,
        "name": f"sample {number}",
        "blob": str(number).encode(),
        "maybe": number if number % 5 else None,
        "vector": [float(number + side) for side in range(3)],
        "ragged": [number] * min(number % 4, 3),
        "image": [pixel + number for pixel in range(6)],
    }


def test_every_sample_arrives_in_partition_order(spark: SparkSession, s3: S3) -> None:
    """All column kinds come back from S3 in the DataFrame's order, in shards of the size asked."""
    url = s3.url("all")
    manifest = write_shards(
        _frame(spark, 100),
        url,
        write=WriteOptions(shapes={"image": (2, 3)}, shard_bytes=2048, block_bytes=512),
    )

    found = _samples(url)

    assert [_expected(number) for number in range(100)] == found
    assert manifest.shard_count > 3
    assert manifest.raw_bytes.max() <= 2048


def test_the_schema_says_what_the_samples_hold(spark: SparkSession, tmp_path: Path) -> None:
    """Equal lengths make tensors, others lists; only columns with nulls are nullable."""
    url = str(tmp_path / "all")
    write_shards(_frame(spark, 40), url, write=WriteOptions(shapes={"image": (2, 3)}))

    with open_dataset(url) as dataset:
        schema = dataset.schema

    item = pa.field("item", pa.float32(), nullable=False)
    assert schema.field("vector").type == pa.list_(item, 3)
    assert pa.types.is_list(schema.field("ragged").type)
    assert schema.field("image").type == pa.fixed_shape_tensor(pa.int16(), (2, 3))
    assert [field.name for field in schema if field.nullable] == ["maybe"]


def test_two_conversions_have_one_fingerprint(spark: SparkSession, tmp_path: Path) -> None:
    """The fingerprint names the samples, not the job that wrote them."""
    first = write_shards(_frame(spark, 50), str(tmp_path / "a"))
    second = write_shards(_frame(spark, 50), str(tmp_path / "b"))

    assert first.fingerprint == second.fingerprint
    assert first.names.to_pylist() != second.names.to_pylist()


def _fail_first_attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 1 and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt of partition 1 fails after its last batch")


def _kill_the_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        os._exit(1)


@pytest.mark.parametrize(("fault", "partitions"), [(_fail_first_attempt, 3), (_kill_the_worker, 2)])
def test_a_task_that_is_tried_again_writes_exactly_once(
    spark: SparkSession, tmp_path: Path, fault: _Rows, partitions: int
) -> None:
    """It fails after uploading shards, or its worker dies without a chance to clean up.

    Each sample is there once, and the shards of the first attempt are swept.
    """
    frame = spark.range(0, 30000, 1, partitions).mapInArrow(fault, "id long")
    manifest = write_shards(
        frame, str(tmp_path), write=WriteOptions(shard_bytes=8192, block_bytes=1024)
    )

    found = [sample["id"] for sample in _samples(str(tmp_path))]
    stored = sorted(open_store(str(tmp_path)).list("shards/"))

    assert list(range(30000)) == found
    assert [f"shards/{name}" for name in manifest.names.to_pylist()] == stored


def _always_fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise RuntimeError("this task never works")


def test_a_failed_job_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own failure is told as such, and neither dataset nor shards remain."""
    frame = spark.range(0, 30000, 1, 2).mapInArrow(_always_fail, "id long")

    with pytest.raises(ConfigurationError, match="this task never works"):
        write_shards(frame, str(tmp_path), write=WriteOptions(shard_bytes=8192, block_bytes=1024))

    assert list(open_store(str(tmp_path)).list()) == []


def test_a_sample_of_another_shape_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """A declared shape that a sample does not have: column, sample, both lengths, what to do."""
    frame = _frame(spark, 8, 1).select("ragged")

    with pytest.raises(
        BadArgumentError, match=r"'ragged': sample 0 .* length 0, .* \(3,\) .*'ragged': 'ragged'"
    ):
        write_shards(frame, str(tmp_path), write=WriteOptions(shapes={"ragged": (3,)}))

    assert list(open_store(str(tmp_path)).list()) == []


def test_a_null_inside_an_array_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Tensors have no room for nulls, so the sample that has one is told."""
    frame = spark.createDataFrame([([1, 2],), ([3, None],)], "x array<int>").coalesce(1)

    with pytest.raises(BadArgumentError, match=r"column 'x': sample 1 .*null inside its array"):
        write_shards(frame, str(tmp_path))


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("interval '1' month", r"cast it to int \(months\)"),
        ("array(interval '1' month)", r"cast it to int \(months\)"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused_first(
    spark: SparkSession, tmp_path: Path, expression: str, advice: str
) -> None:
    """Before any job: the column, its type, and what to do with it."""
    frame = spark.sql(f"select {expression} as x")

    with pytest.raises(UnsupportedColumnError, match=rf"'x(\.element)?' is .*{advice}"):
        write_shards(frame, str(tmp_path))


RICH = """
    select date'2020-01-02' as d, timestamp'2020-01-02 03:04:05+00:00' as t,
        timestamp_ntz'2020-01-02 03:04:05' as n, cast(1.25 as decimal(9, 2)) as p,
        named_struct('a', 1, 'b', 'x') as s, map('k', 1) as m, array('ab', 'c') as w,
        array(array(1, 2), array(3)) as g, array(named_struct('q', 1)) as l,
        interval '1' day as i, cast(1 as tinyint) as b
    union all select null, null, null, null, null, null, null, null, null, null, null
"""


def test_every_other_type_of_spark_is_stored_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Times, decimals, structs, maps and nested arrays keep their values and their nulls."""
    write_shards(spark.sql(RICH), str(tmp_path))
    with open_dataset(str(tmp_path)) as dataset:
        found = [row for block in range(2) for row in dataset.read_block(block).to_pylist()]

    full: dict[str, object] = {
        "d": dt.date(2020, 1, 2),
        "t": dt.datetime.fromisoformat("2020-01-02T03:04:05+00:00"),
        "n": dt.datetime.fromisoformat("2020-01-02T03:04:05"),
        "p": Decimal("1.25"),
        "s": {"a": 1, "b": "x"},
        "m": [("k", 1)],
        "w": ["ab", "c"],
        "g": [[1, 2], [3]],
        "l": [{"q": 1}],
        "i": dt.timedelta(days=1),
        "b": 1,
    }
    assert [full, dict.fromkeys(full)] == found


def test_a_shape_for_no_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A misspelt column in shapes is told with the columns there are."""
    with pytest.raises(ColumnNotFoundError, match=r"shapes names imgae, .* are id"):
        write_shards(spark.range(1), str(tmp_path), write=WriteOptions(shapes={"imgae": (2,)}))


def test_modes(spark: SparkSession, tmp_path: Path) -> None:
    """A second write is refused, or replaces, or appends, as asked."""
    url = str(tmp_path)
    write_shards(spark.range(0, 10, 1, 1), url)
    with pytest.raises(DatasetExistsError, match="mode='overwrite'"):
        write_shards(spark.range(0, 5, 1, 1), url)

    replaced = write_shards(spark.range(0, 5, 1, 1), url, mode="overwrite")
    appended = write_shards(spark.range(5, 8, 1, 1), url, mode="append")
    unchanged = write_shards(spark.range(0), url, mode="append")

    assert (5, 8, 8) == (replaced.sample_count, appended.sample_count, unchanged.sample_count)
    assert list(range(8)) == [sample["id"] for sample in _samples(url)]


def test_an_empty_frame_is_an_empty_dataset(spark: SparkSession, tmp_path: Path) -> None:
    """It has the frame's columns, and takes samples later; other formats cannot say them."""
    url = str(tmp_path / "d")
    frame = spark.createDataFrame([], "id long, text string, items array<float>")

    empty = write_shards(frame, url)
    assert 0 == empty.sample_count
    with open_dataset(url) as dataset:
        assert ["id", "text", "items"] == dataset.schema.names
    rows = [(1, None, [1.0, 2.0]), (2, "b", [3.0, 4.0])]
    write_shards(spark.createDataFrame(rows, frame.schema), url, mode="append")
    assert [None, "b"] == [sample["text"] for sample in _samples(url)]
    assert 0 == write_shards(frame, url, mode="overwrite").sample_count
    with pytest.raises(BadArgumentError, match="the format 'arrow'"):
        write_shards(spark.range(0), str(tmp_path / "mds"), format="mds")


def test_refused_executors_are_told(spark: SparkSession, s3: S3) -> None:
    """Credentials that may not write: the key is named, the secret is not, nothing remains."""
    options = StoreOptions(
        endpoint=s3.weed.endpoint,
        access_key=s3.weed.reader_access_key,
        secret_key=s3.weed.reader_secret_key,
        region=s3.weed.region,
        retry=RetryPolicy(attempts=1),
    )

    with pytest.raises(StoreRefusedError, match=s3.weed.reader_access_key) as caught:
        write_shards(spark.range(10), s3.url("refused"), options=options)

    assert s3.weed.reader_secret_key not in str(caught.value)
    assert list(open_store(s3.url("refused")).list()) == []


def test_progress_counts_to_the_end(spark: SparkSession, tmp_path: Path) -> None:
    """The last call has all tasks, samples and bytes."""
    seen: list[Progress] = []
    write_shards(spark.range(0, 1000, 1, 4), str(tmp_path), progress=seen.append)

    last = seen[-1]

    assert (
        Progress(tasks_done=4, tasks_total=4, shard_count=4, sample_count=1000, raw_bytes=8000)
        == last
    )


def test_an_interrupt_leaves_no_dataset(spark: SparkSession, tmp_path: Path) -> None:
    """Ctrl-C in a running job cancels it: no dataset, and no shard of those already written."""

    def interrupt(progress: Progress) -> None:
        del progress
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(spark.range(0, 100000, 1, 8), str(tmp_path), progress=interrupt)

    assert list(open_store(str(tmp_path)).list()) == []


def test_nulls_leave_gaps_in_tensors(spark: SparkSession, tmp_path: Path) -> None:
    """A sample without its declared tensor is null; its neighbours keep their values."""
    rows = [([[1, 2], [3, 4]],), (None,), ([[5, 6], [7, 8]],)]
    frame = spark.createDataFrame(rows, "x array<array<int>>").coalesce(1)
    write_shards(frame, str(tmp_path), write=WriteOptions(shapes={"x": (2, 2)}))

    with open_dataset(str(tmp_path)) as dataset:
        kind = dataset.schema.field("x").type
        found = dataset.read_block(0).to_pydict()

    assert kind == pa.fixed_shape_tensor(pa.int32(), (2, 2))
    assert {"x": [[1, 2, 3, 4], None, [5, 6, 7, 8]]} == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"write": lambda: WriteOptions(compression="gzip")}, "compression is 'gzip'"),
        ({"write": lambda: WriteOptions(block_bytes=0)}, "block_bytes is 0"),
        ({"write": lambda: WriteOptions(shard_bytes=0)}, "shard_bytes is 0"),
        ({"write": lambda: WriteOptions(shard_bytes=10, block_bytes=20)}, "shard_bytes is 10"),
        ({"mode": "replace"}, "mode is 'replace'"),
        (
            {"write": lambda: WriteOptions(shapes={"id": (2,)})},
            "'id', which is bigint and no array",
        ),
    ],
)
def test_bad_arguments_are_refused_first(
    spark: SparkSession, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    """Before any job: the argument, its value, what is wanted."""

    def write() -> None:
        given = {name: of() if name == "write" else of for name, of in arguments.items()}
        write_shards(spark.range(1), str(tmp_path), **given)

    with pytest.raises(BadArgumentError, match=message):
        write()
