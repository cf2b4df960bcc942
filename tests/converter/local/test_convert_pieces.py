"""A conversion without Spark merges small shards in several rounds, and keeps each round's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from headrace.converter import WriteOptions
from headrace.converter.local.convert_pieces import MergeInThreads
from headrace.converter.plan.schema import plan_columns
from headrace.converter.tasks.merge import ShardGroup
from headrace.converter.tasks.outcome import make_task
from headrace.converter.tasks.shard_task import SamplePlan, ShardTask, entry_of
from headrace.storage import ShardEntry, StoreOptions, commit_dataset, open_dataset, open_store

_SCHEMA = pa.schema([pa.field("id", pa.int64())])


def _shard(task: ShardTask, number: int) -> ShardEntry:
    batch = pa.record_batch({"id": [number]}, schema=_SCHEMA)
    stem = f"{number:05d}-{task.job}0000"
    (row,) = task.rows(iter([batch]), partition=number, stem=stem)
    entry = entry_of(row.to_pylist()[0])
    assert isinstance(entry, ShardEntry)
    return entry


def test_rounds_of_merges_do_not_overwrite_one_another(tmp_path: Path) -> None:
    """Groups of a second round, whose numbers begin at 0 again, get shards of other names."""
    plan = SamplePlan(plan_columns(_SCHEMA), WriteOptions().writing("arrow"))
    task = make_task(plan, str(tmp_path), options=StoreOptions(), count=None)
    shards = [_shard(task, number) for number in range(4)]
    merge = MergeInThreads(task, 2)

    later = merge((ShardGroup("", 2, tuple(shards[2:])),))
    earlier = merge((ShardGroup("", 0, tuple(shards[:2])),))

    store = open_store(str(tmp_path))
    merged = [entry_of(row) for row in (*earlier, *later)]
    commit_dataset(store, plan.schema, [entry for entry in merged if isinstance(entry, ShardEntry)])
    with open_dataset(str(tmp_path)) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    assert [0, 1, 2, 3] == [sample for block in blocks for sample in block["id"].to_pylist()]
