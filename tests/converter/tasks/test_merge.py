"""Many small shards become few: no sample lost, doubled or moved, whatever fails meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from headrace.converter import Progress, WriteOptions, convert_files, write_shards
from headrace.converter.tasks.merge import (
    LEAST_SAVED,
    MOST_SHARDS,
    ShardGroup,
    jobs_of,
    plan_merges,
)
from headrace.errors import HeadraceError
from headrace.storage import BLOCK_DTYPE, Manifest, ShardEntry, open_dataset, open_store
from support.merging import Task, write_disturbed

_SMALL = WriteOptions(shard_bytes=4096, block_bytes=1024)


def _entry(name: str, raw_bytes: int) -> ShardEntry:
    blocks = np.zeros(1, BLOCK_DTYPE)
    blocks["raw_bytes"], blocks["sample_count"] = raw_bytes, 1
    return ShardEntry(name, raw_bytes, blocks, ())


def _ids(url: str) -> list[int]:
    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return [int(sample["id"]) for sample in pa.Table.from_batches(blocks).to_pylist()]


def _stored(url: str) -> list[str]:
    return sorted(open_store(url).list("shards/"))


def _named(manifest: Manifest) -> list[str]:
    return sorted(f"shards/{name}" for name in manifest.names.to_pylist())


@given(st.lists(st.integers(1, 130), max_size=120))
def test_groups_are_runs_of_neighbours_that_save(sizes: list[int]) -> None:
    """No shard is in two groups, and a third of each group's shards is saved at least."""
    entries = [_entry(f"{place}", size) for place, size in enumerate(sizes)]
    groups = plan_merges({"": entries}, shard_bytes=100, least_saved=1)

    end = 0
    for group in groups:
        assert group.first >= end
        end = group.first + len(group.entries)
        assert list(group.entries) == entries[group.first : end]
        total = sum(entry.raw_bytes for entry in group.entries)
        left = -(-total // 100)
        assert left <= MOST_SHARDS
        assert 3 * left <= 2 * len(group.entries)
    assert list(groups) == [group for job in jobs_of(groups) for group in job]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300))
def test_small_shards_become_as_few_as_they_can(sizes: list[int]) -> None:
    """Where all shards are small, an eighth more are left than the bytes take, and two."""
    entries = [_entry(f"{place}", size) for place, size in enumerate(sizes)]
    groups = plan_merges({"": entries}, shard_bytes=100, least_saved=1)

    grouped = sum(len(group.entries) for group in groups)
    left = sum(-(-sum(entry.raw_bytes for entry in group.entries) // 100) for group in groups)
    assert len(sizes) - grouped + left <= sum(sizes) / 100 * 8 / 7 + 2


def test_large_shards_are_left_alone() -> None:
    """A partition that ends in a part of a shard is not written twice for it; a few are few."""
    long = [_entry(f"{at}", 30 if at % 16 == 15 else 100) for at in range(160)]
    few = [_entry(f"{at}", 1) for at in range(LEAST_SAVED)]

    assert () == plan_merges({"": long}, shard_bytes=100)
    assert () == plan_merges({"": few}, shard_bytes=100)


def test_small_partitions_become_one_shard_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """Twelve partitions are one shard, nothing else is left, and progress counts both stages."""
    seen: list[Progress] = []
    url = str(tmp_path / "d")
    manifest = write_shards(spark.range(0, 1000, 1, 12), url, progress=seen.append)
    other = write_shards(spark.range(0, 1000, 1, 12), str(tmp_path / "e"))

    assert 1 == manifest.shard_count
    assert list(range(1000)) == _ids(url)
    assert _named(manifest) == _stored(url)
    assert manifest.fingerprint == other.fingerprint
    assert (13, 13, 1000) == (seen[-1].tasks_done, seen[-1].tasks_total, seen[-1].sample_count)
    assert [now.tasks_done for now in seen] == sorted(now.tasks_done for now in seen)


def test_skewed_partitions_keep_limits_and_even_blocks(spark: SparkSession, tmp_path: Path) -> None:
    """Of one large partition among tiny ones no shard is over the limit, and few are under it."""
    rows = spark.range(0, 4000, 1, 1).withColumn("at", sf.least(sf.col("id") % 40, sf.lit(12)))
    skewed = rows.repartitionByRange(13, "at").sortWithinPartitions("id").drop("at")
    manifest = write_shards(skewed, str(tmp_path), write=_SMALL)

    assert manifest.raw_bytes.max() <= 4096
    assert (manifest.block_samples > 0).all()
    assert manifest.shard_count <= 4000 * 8 / 4096 * 1.25 + 2
    assert [row["id"] for row in skewed.collect()] == _ids(str(tmp_path))


def test_appends_and_splits_are_merged_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Shards of the version before stay as they are, and no split gets another's samples."""
    url = str(tmp_path / "d")
    first = write_shards(spark.range(0, 100, 1, 10), url)
    both = write_shards(spark.range(100, 200, 1, 10), url, mode="append")
    parts = write_shards(
        spark.range(0, 600, 1, 10), str(tmp_path / "s"), splits={"a": 0.5, "b": 0.5}
    )
    found = {name: _ids(str(tmp_path / "s" / name)) for name in parts}

    assert both.names.to_pylist()[0] == first.names.to_pylist()[0]
    assert (2, list(range(200))) == (both.shard_count, _ids(url))
    assert [1, 1] == [part.shard_count for part in parts.values()]
    assert list(range(600)) == sorted(at for ids in found.values() for at in ids)
    assert all(ids == sorted(ids) for ids in found.values())


def test_files_without_spark_are_merged_too(tmp_path: Path) -> None:
    """Twenty Parquet files of some rows become one shard, in the order of their names."""
    source = tmp_path / "files"
    source.mkdir()
    for at in range(20):
        pq.write_table(pa.table({"id": range(at * 5, at * 5 + 5)}), source / f"{at:02d}.parquet")
    manifest = convert_files(str(source), str(tmp_path / "d"), source_format="parquet")[""]

    assert isinstance(manifest, Manifest)
    assert (1, list(range(100))) == (manifest.shard_count, _ids(str(tmp_path / "d")))
    assert _named(manifest) == _stored(str(tmp_path / "d"))


class _Failing:
    """A merge that fails after its shard is stored, in its first attempts."""

    def __init__(self, task: Task, attempts: int) -> None:
        self._task = task
        self._attempts = attempts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self._task(batches)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() < self._attempts:
            raise RuntimeError("a merge fails after its shard is stored")


def test_a_retried_merge_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    """An attempt that stored its shard and failed is in no manifest, and is swept."""
    frame = spark.range(0, 1000, 1, 12)
    written = write_disturbed(frame, str(tmp_path), lambda task: _Failing(task, 1))

    assert isinstance(written, Manifest)
    assert list(range(1000)) == _ids(str(tmp_path))
    assert _named(written) == _stored(str(tmp_path))


def test_a_failed_merge_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A merge that fails for good fails the job: no dataset, no shard."""
    with pytest.raises(HeadraceError, match="a merge fails"):
        write_disturbed(spark.range(0, 1000, 1, 12), str(tmp_path), lambda task: _Failing(task, 99))

    assert [] == _stored(str(tmp_path))
    assert not (tmp_path / "headrace.json").exists()


def test_jobs_bound_what_a_job_is_sent() -> None:
    """Groups of more shards than a job takes come in several, in their order."""
    entries = tuple(_entry(f"{at}", 1) for at in range(5000))
    groups = tuple(ShardGroup("", at * 5000, entries) for at in range(4))

    assert [groups[at : at + 1] for at in range(4)] == jobs_of(groups)
