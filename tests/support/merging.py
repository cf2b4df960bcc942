"""Convert with a merge whose tasks a test disturbs: as `write_shards`, but for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, Row

from headrace.converter import WriteOptions
from headrace.converter.plan.plan import WantedConversion
from headrace.converter.spark.job import run_job
from headrace.converter.spark.plan_rows import plan_rows
from headrace.converter.spark.probe import prepare
from headrace.converter.tasks.commit import Written
from headrace.converter.tasks.handover import bounded_handover
from headrace.converter.tasks.merge import MergeTask, ShardGroup
from headrace.converter.tasks.outcome import make_task, write_task
from headrace.converter.tasks.shard_task import ROW_SCHEMA
from headrace.storage import StoreOptions

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def write_disturbed(
    df: DataFrame, url: str, disturbed: Callable[[Task], Task], *, write: WriteOptions | None = None
) -> Written:
    """Convert ``df``; small shards are merged by what ``disturbed`` makes of the task for it."""
    write = write or WriteOptions()
    wanted = WantedConversion(
        columns=None,
        write=write,
        splits=None,
        split_seed=0,
        writing=write.writing("arrow"),
        mode="error",
        options=StoreOptions(),
    )
    rows, plan = plan_rows(df, wanted)
    handover = bounded_handover(rows)
    task = make_task(plan, url, options=wanted.options, names=handover.names, count=None)

    def run() -> Sequence[Row]:
        prepare(df.sparkSession, task)
        return run_job(handover.df.mapInArrow(task, ROW_SCHEMA), properties=handover.properties)

    def merge(groups: tuple[ShardGroup, ...]) -> Sequence[Row]:
        numbers = df.sparkSession.range(0, len(groups), 1, len(groups))
        return run_job(numbers.mapInArrow(disturbed(MergeTask(task, groups)), ROW_SCHEMA))

    return write_task(task, run, merge=merge, mode="error")[""]
