"""Write a DataFrame as a dataset: executors upload shards, the driver commits them.

Contract of `write_shards`:

1. Success: one commit at the end, so a reader sees the dataset of before or the whole new one.
2. Failure, conflict or interrupt before the commit: the dataset is what it was, and shards of
   this job are removed as far as they can be found.
3. Killed driver: as 2, but the shards stay until they are swept; no manifest names them.
4. A commit whose answer was lost keeps its shards: it may have happened.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.converter._job import Progress, context_of, make_counters, run_job
from headrace.converter._schema import Shape, plan_columns
from headrace.converter._tasks import ROW_SCHEMA, ShardTask, entry_of, remove_shards
from headrace.errors import BadArgumentError, HeadraceError, StoreUnavailableError
from headrace.storage import (
    DEFAULT_BLOCK_BYTES,
    SHARD_FOLDER,
    Compression,
    Manifest,
    Mode,
    Store,
    StoreOptions,
    check_blocks,
    check_mode,
    commit_dataset,
    open_store,
    options_with_environment,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_SHARD_BYTES = 64 << 20  # large enough that listing and opening cost nothing beside it
_MAX_SWEEPS = 4  # arbitrary: more than one means that a worker was still writing
_SWEEP_PAUSE_S = 0.5  # arbitrary: in which a worker notices that its task is gone


def write_shards(
    df: DataFrame,
    url: str,
    *,
    compression: Compression = "lz4",
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    mode: Mode = "error",
    shapes: Mapping[str, Shape] | None = None,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Manifest:
    """Write the rows of ``df`` as samples of a dataset, in the order of its partitions.

    Columns may be numbers, bools, strings, binaries, dates, timestamps, decimals, and arrays, maps
    and structs of these, all with nulls. An array of numbers that ``shapes`` does not name becomes
    a tensor if all its samples have one length, and a list otherwise; it holds no null items.

    Args:
        df: Any DataFrame; its partitions are written in parallel, each into shards of its own.
        url: Where the dataset is or will be: a path that all executors share, or a URL such as
            ``s3://bucket/name``. Executors upload by themselves; Hadoop needs no S3 connector.
        compression: Of each block: ``lz4``, ``zstd`` or ``none``.
        shard_bytes: Raw bytes of a shard at most, unless one sample has more.
        block_bytes: Raw bytes of a block at most, unless one sample has more.
        mode: Where a dataset is already: ``error`` refuses, ``overwrite`` replaces it and
            ``append`` adds to it; older versions stay readable by fingerprint.
        shapes: Sides of tensors by column, such as ``{"image": (28, 28)}``, row-major; or
            ``"ragged"`` for lists that must stay lists.
        options: How to reach the store. What is not set is taken from the driver's ``AWS_``
            variables, and sent to executors with the job, secrets included; leave keys out of
            the driver's environment where executors have roles of their own.
        progress: Called a few times a second, and once when the job is done.

    Returns:
        The manifest of the version that is now current.

    Raises:
        UnsupportedColumnError: A column cannot be stored; before the job starts.
        BadArgumentError: An argument or a sample is not as wanted, or there are no samples.
        DatasetExistsError: ``mode`` is ``error`` and there is a dataset; before the job starts.
        CommitConflictError: Another commit came between.
        StoreRefusedError: The store refuses the driver or an executor.
        StoreUnavailableError: The store could not be reached.
        ConfigurationError: Spark failed for reasons of its own.
    """
    check_blocks(compression, block_bytes)
    if shard_bytes < block_bytes:
        raise BadArgumentError(
            f"shard_bytes is {shard_bytes}, wanted at least block_bytes, {block_bytes}",
            field="shard_bytes",
        )
    plans = plan_columns(df.schema, shapes)
    shipped = options_with_environment(options or StoreOptions())
    store = open_store(url, options=shipped)
    try:
        check_mode(store, mode)
        task = ShardTask(
            job=uuid.uuid4().hex[:8],
            url=store.url,
            options=shipped,
            plans=plans,
            compression=compression,
            shard_bytes=shard_bytes,
            block_bytes=block_bytes,
            count=make_counters(context_of(df)) if progress else None,
        )
        return _write(df, store, task=task, mode=mode, progress=progress)
    finally:
        store.close()


def _write(
    df: DataFrame,
    store: Store,
    *,
    task: ShardTask,
    mode: Mode,
    progress: Callable[[Progress], None] | None,
) -> Manifest:
    keep: set[str] = set()
    try:
        rows = run_job(df.mapInArrow(task, ROW_SCHEMA), counters=task.count, progress=progress)
        rows.sort(key=lambda row: (row["partition"], row["sequence"]))
        shards = [entry_of(row) for row in rows]
        try:
            manifest = commit_dataset(store, task.schema, shards, mode=mode)
        except StoreUnavailableError:
            keep = {shard.name for shard in shards}  # the commit may have happened
            raise
        keep = {shard.name for shard in shards}
        return manifest
    finally:
        _sweep(store, task.job, keep=keep)


def _sweep(store: Store, job: str, *, keep: set[str]) -> None:
    """Remove shards of this job that no manifest names: those of failed and killed tasks.

    A Python worker outlives its task by moments and may publish one shard more, so a sweep that
    found something is followed by another.
    """
    with contextlib.suppress(HeadraceError):
        for _ in range(_MAX_SWEEPS):
            names = (
                name.removeprefix(f"{SHARD_FOLDER}/") for name in store.list(f"{SHARD_FOLDER}/")
            )
            found = [name for name in names if f"-{job}" in name and name not in keep]
            if not found:
                return
            remove_shards(store, found)
            time.sleep(_SWEEP_PAUSE_S)
