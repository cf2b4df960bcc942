"""Convert on a cluster whose executors lack headrace, copy a slow task and lose an executor."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from headrace.converter import WriteOptions, write_shards
from headrace.storage import open_dataset, open_store
from support.merging import Task, write_disturbed

ROWS = 30_000
DEADLINE_S = 120.0


def main(folder: str, master: str) -> None:
    """Run the three jobs and print what each left."""
    spark = _session(folder, master)
    found = {"imports": spark.range(1).mapInArrow(_import, "error string").collect()[0]["error"]}
    frame = spark.range(0, ROWS, 1, 2)
    slow, lost = Path(folder, "slow"), Path(folder, "lost")
    for name, trouble in (("slow", _slow(str(slow))), ("lost", _lose(str(lost)))):
        marks = Path(folder, name)
        marks.mkdir()
        url = f"{folder}/dataset-{name}"
        write_shards(
            frame.mapInArrow(trouble, "id long"),
            url,
            write=WriteOptions(shard_bytes=8192, block_bytes=1024),
        )
        attempts = sorted(mark.name for mark in marks.iterdir())
        happened = "trouble" in attempts
        found[name] = {"attempts": attempts, "happened": happened, **_left(url)}
    small = spark.range(0, ROWS, 1, 16)
    for name in ("merge-slow", "merge-lost"):
        marks = Path(folder, name)
        marks.mkdir()
        url = f"{folder}/dataset-{name}"
        disturb = partial(_slow_merge if name == "merge-slow" else _lost_merge, str(marks))
        write_disturbed(
            small, url, disturb, write=WriteOptions(shard_bytes=65536, block_bytes=1024)
        )
        attempts = sorted(mark.name for mark in marks.iterdir())
        found[name] = {"attempts": attempts, "happened": "trouble" in attempts, **_left(url)}
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


def _left(url: str) -> dict[str, Any]:
    with open_dataset(url) as dataset:
        ids = [
            number
            for block in range(dataset.block_count)
            for number in dataset.read_block(block).column("id").to_pylist()
        ]
        shard_count = dataset.shard_count
    stored = [name for name in open_store(url).list() if name.startswith("shards/")]
    return {"exact": ids == list(range(ROWS)), "strays": len(stored) - shard_count}


def _import(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    list(batches)
    try:
        import headrace.storage  # noqa: F401, PLC0415 - to see whether it is there
    except ImportError as error:
        yield pa.record_batch({"error": pa.array([str(error)])})
    else:
        yield pa.record_batch({"error": pa.array(["none"])})


def _is_first(marks: str) -> bool:
    """Note an attempt; return whether it is the first of partition 0 that came so far.

    That need not be attempt 0: where a machine is busy, Spark copies a task that was slow to begin.
    """
    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    Path(marks, f"{partition}-{context.attemptNumber()}").touch()
    if partition:
        return False
    try:
        Path(marks, "first").mkdir()
    except FileExistsError:
        return False
    return True


def _slow(marks: str) -> Any:
    """Return a function whose first attempt at partition 0 waits, after some shards, for ever."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waits = _is_first(marks)
        for number, batch in enumerate(batches):
            yield batch
            if waits and number == 0:
                Path(marks, "trouble").touch()
                deadline = time.monotonic() + DEADLINE_S
                while time.monotonic() < deadline:
                    time.sleep(0.05)  # until Spark kills this attempt for its faster copy

    return run


def _lose(marks: str) -> Any:
    """Return a function whose first attempt at partition 0 kills its executor, after shards."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kills = _is_first(marks)
        yield from batches
        if kills:
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            executor = int(daemon.rsplit(")", 1)[1].split()[1])
            Path(marks, "trouble").touch()
            os.kill(executor, signal.SIGKILL)

    return run


def _slow_merge(marks: str, task: Task) -> Task:
    """Return a merge whose first attempt at the first group stores its shard, then waits."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waits = _is_first(marks)
        rows = list(task(batches))
        if waits:
            Path(marks, "trouble").touch()
            deadline = time.monotonic() + DEADLINE_S
            while time.monotonic() < deadline:
                time.sleep(0.05)  # until Spark kills this attempt for its faster copy
        yield from rows

    return run


def _lost_merge(marks: str, task: Task) -> Task:
    """Return a merge whose first attempt at the first group kills its executor, after its shard."""
    lose = _lose(marks)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from lose(task(batches))

    return run


def _session(folder: str, master: str) -> SparkSession:
    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .getOrCreate()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
