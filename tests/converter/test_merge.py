"""Many small shards become few: no sample lost, doubled or moved, whatever fails meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql import SparkSession

from headrace.converter import WriteOptions, write_shards
from headrace.converter._merge import LEAST_SAVED, MergeTask, plan_merges
from headrace.errors import HeadraceError
from headrace.storage import BLOCK_DTYPE, ShardEntry, open_dataset, open_store


def _entry(name: str, raw_bytes: int) -> ShardEntry:
    blocks = np.zeros(1, BLOCK_DTYPE)
    blocks["raw_bytes"], blocks["sample_count"] = raw_bytes, 1
    return ShardEntry(name, raw_bytes, blocks, ())


def _ids(url: str) -> list[object]:
    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return [sample["id"] for sample in pa.Table.from_batches(blocks).to_pylist()]


def _stored(url: str) -> list[str]:
    return sorted(open_store(url).list("shards/"))


@given(st.lists(st.integers(1, 150), max_size=80))
def test_groups_are_neighbours_within_the_limit(sizes: list[int]) -> None:
    """Each group is a run of small shards in its place, and none is in two."""
    entries = [_entry(f"{place}", size) for place, size in enumerate(sizes)]
    groups = plan_merges({"": entries}, shard_bytes=100)

    end = 0
    for group in groups:
        assert group.first >= end
        end = group.first + len(group.entries)
        assert list(group.entries) == entries[group.first : end]
        assert len(group.entries) > 1
        assert all(2 * entry.raw_bytes < 100 for entry in group.entries)
        assert sum(entry.raw_bytes for entry in group.entries) <= 100
    saved = sum(len(group.entries) - 1 for group in groups)
    assert not groups or saved >= LEAST_SAVED


def test_small_partitions_become_one_shard_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """Forty partitions of a few rows are one shard, and nothing else is left in the store."""
    url = str(tmp_path / "d")
    manifest = write_shards(spark.range(0, 1000, 1, 40), url)

    assert manifest.shard_count == 1
    assert _ids(url) == list(range(1000))
    assert _stored(url) == [f"shards/{name}" for name in manifest.names.to_pylist()]


def test_appends_and_splits_are_merged_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Shards of the version before stay as they are, and no split gets another's samples."""
    url = str(tmp_path / "d")
    first = write_shards(spark.range(0, 100, 1, 30), url)
    both = write_shards(spark.range(100, 200, 1, 30), url, mode="append")
    assert both.names.to_pylist()[0] == first.names.to_pylist()[0]
    assert _ids(url) == list(range(200))

    parts = write_shards(
        spark.range(0, 2000, 1, 30), str(tmp_path / "s"), splits={"a": 0.5, "b": 0.5}
    )
    found = {name: _ids(str(tmp_path / "s" / name)) for name in parts}
    assert [part.shard_count for part in parts.values()] == [1, 1]
    assert not set(found["a"]) & set(found["b"])
    assert all(ids == [at for at in range(2000) if at in set(ids)] for ids in found.values())
    assert sum(map(len, found.values())) == 2000


class _FailingMerge(MergeTask):
    """Fails after its shard is stored: the first attempt, or each one."""

    attempts = 1

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from MergeTask.__call__(self, batches)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() < self.attempts:
            raise RuntimeError("a merge fails after its shard is stored")


class _HopelessMerge(_FailingMerge):
    attempts = 99


def test_a_retried_merge_counts_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that stored its shard and failed is in no manifest, and is swept."""
    monkeypatch.setattr("headrace.converter._write.MergeTask", _FailingMerge)
    url = str(tmp_path)
    manifest = write_shards(spark.range(0, 1000, 1, 40), url)

    assert _ids(url) == list(range(1000))
    assert _stored(url) == [f"shards/{name}" for name in manifest.names.to_pylist()]


def test_a_failed_merge_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge that fails for good fails the job: no dataset, no shard."""
    monkeypatch.setattr("headrace.converter._write.MergeTask", _HopelessMerge)
    with pytest.raises(HeadraceError):
        write_shards(spark.range(0, 1000, 1, 40), str(tmp_path))

    assert _stored(str(tmp_path)) == []
    assert not (tmp_path / "headrace.json").exists()


def test_merged_shards_keep_their_limits(spark: SparkSession, tmp_path: Path) -> None:
    """No merged shard is larger than asked, and blocks in it are even."""
    write = WriteOptions(shard_bytes=4096, block_bytes=1024)
    manifest = write_shards(spark.range(0, 5000, 1, 50), str(tmp_path), write=write)

    assert manifest.shard_count <= 12
    assert manifest.raw_bytes.max() <= 4096
    assert _ids(str(tmp_path)) == list(range(5000))


def test_several_jobs_merge_as_one_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that are divided among jobs come back each in its own place."""
    monkeypatch.setattr("headrace.converter._merge.MOST_ENTRIES", 16)
    manifest = write_shards(spark.range(0, 1000, 1, 40), str(tmp_path))

    assert manifest.shard_count == 3
    assert _ids(str(tmp_path)) == list(range(1000))
