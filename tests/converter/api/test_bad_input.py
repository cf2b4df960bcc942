"""What goes wrong while a job runs is told, and nothing of it can be seen."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.converter import Function, WriteOptions, write_shards
from headrace.converter.tasks.sinks import Writing, open_sink
from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from headrace.storage import StoreOptions, open_dataset, open_store, options_with_environment
from support.s3 import S3

_PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
_JPEG = b"\xff\xd8\xff\xe0" + bytes(20)


def test_a_full_disk_is_told_with_its_place(tmp_path: Path) -> None:
    """The system's own words, the file, and no shard left, whole or begun."""
    store = open_store(str(tmp_path))
    batch = pa.record_batch([pa.array(range(60_000))], ["id"])
    writing = Writing("arrow", "none", None, shard_bytes=128 << 10, block_bytes=4096)
    sink = open_sink(store, batch.schema, writing, stem="00000-job")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    sink.append(batch.slice(0, 30_000))  # enough to begin a second shard
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))  # a file takes no more than this
    try:
        with pytest.raises(
            StoreUnavailableError, match=r"00000-0001-job\.arrow in .*File too large"
        ):
            sink.append(batch.slice(30_000))
    finally:
        sink.abort()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


def _filling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass on, on a disk on which no file takes more than 64 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    try:
        yield from batches
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_fails_the_job_and_leaves_what_was_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In the workers of a job: the file and the system's words; the dataset is as it was."""
    before = write_shards(spark.range(10), str(tmp_path))
    names = set(open_store(str(tmp_path)).list())

    with pytest.raises(StoreUnavailableError, match=r"0000.*\.arrow in .*File too large"):
        write_shards(
            spark.range(0, 60_000, 1, 2),
            str(tmp_path),
            function=Function(_filling, "id long"),
            write=WriteOptions(compression="none", shard_bytes=128 << 10, block_bytes=4096),
            mode="overwrite",
        )

    assert names == set(open_store(str(tmp_path)).list())
    assert [] == list(tmp_path.rglob(".*.arrow.*"))
    with open_dataset(str(tmp_path)) as dataset:
        assert before.fingerprint == dataset.fingerprint


def test_a_bucket_that_vanishes_is_told(spark: SparkSession, s3: S3) -> None:
    """Shards that are gone again when all is written: their count, the place, no dataset."""
    url = s3.url("vanishing")
    options = options_with_environment(StoreOptions())

    def vanish(rows: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            if row["id"] == 5000:
                store = open_store(url, options=options)
                for name in list(store.list()):
                    store.delete(name)
            yield {"id": row["id"]}

    with pytest.raises(ObjectNotFoundError, match=r"3 of 10 shards .*vanishing.*nothing was"):
        write_shards(
            spark.range(0, 10_000, 1, 1),
            url,
            function=Function(vanish, "id long", over="rows"),
            write=WriteOptions(shard_bytes=8192, block_bytes=1024),
        )

    assert list(open_store(url).list()) == []


def test_files_keep_the_format_of_their_bytes(spark: SparkSession, tmp_path: Path) -> None:
    """One format for all files is noted; of several, or of none that is known, nothing is."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(4):
        (files / f"{number}.bin").write_bytes(_PNG if number % 2 else _JPEG)
    frame = spark.read.format("binaryFile").load(str(files))
    write_shards(frame.where("path like '%1.bin' or path like '%3.bin'"), str(tmp_path / "png"))
    write_shards(frame, str(tmp_path / "mixed"), columns=["path", "content"])

    with open_dataset(str(tmp_path / "png")) as dataset:
        assert {b"headrace.format": b"png"} == dataset.schema.field("content").metadata
        assert ["path", "modificationTime", "length", "content"] == dataset.schema.names
        assert [_PNG] == dataset.read_block(0).column("content").unique().to_pylist()
    with open_dataset(str(tmp_path / "mixed")) as dataset:
        assert dataset.schema.field("content").metadata is None


def test_the_image_source_keeps_its_pixels(spark: SparkSession, tmp_path: Path) -> None:
    """Spark decodes those images; origin, sides, mode and pixels are stored as they are."""
    pytest.importorskip("PIL.Image").new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "a.png")
    frame = spark.read.format("image").load(str(tmp_path / "a.png"))
    write_shards(frame, str(tmp_path / "d"))

    with open_dataset(str(tmp_path / "d")) as dataset:
        [sample] = dataset.read_block(0).to_pylist()
    image = sample["image"]
    assert (2, 3, 3) == (image["height"], image["width"], image["nChannels"])
    assert bytes([3, 2, 1] * 6) == image["data"]


def _changing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        yield batch if number == 0 else batch.rename_columns(["other"])


def test_a_function_that_changes_its_columns_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """What it yielded and what it promised."""
    function = Function(_changing, "id long")

    with pytest.raises(BadArgumentError, match="yielded the columns other, but its schema has id"):
        write_shards(spark.range(0, 30_000, 1, 1), str(tmp_path), function=function)


def test_what_a_task_cannot_load_is_told_before_the_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A function of a module that executors lack: the module, the executor, what to do."""

    class Absent:
        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches

        def __reduce__(self) -> tuple[object, tuple[str]]:
            return __import__, ("no_such_module",)

    with pytest.raises(ConfigurationError, match=r"executor on .*no_such_module.*addArtifacts"):
        write_shards(spark.range(3), str(tmp_path), function=Function(Absent(), "id long"))

    assert list(open_store(str(tmp_path)).list()) == []
