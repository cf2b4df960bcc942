"""Write a DataFrame as a dataset: executors upload shards, the driver commits them.

Contract of `write_shards`:

1. Success: one commit a dataset at the end, so a reader sees that of before or the whole new one.
2. Failure, conflict or interrupt before the commit: every dataset is what it was, and shards of
   this job are removed as far as they can be found.
3. Killed driver: as 2, but the shards stay until they are swept; no manifest names them.
4. A commit whose answer was lost keeps its shards: it may have happened.
5. With splits, each is committed for itself, one after another, when all have been written.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast, overload

import pyarrow as pa

from headrace.converter._commit import Commits, Written, check_target, commit_splits
from headrace.converter._formats import schema_with_formats
from headrace.converter._function import Function
from headrace.converter._handover import bounded_handover, plain_handover
from headrace.converter._job import Progress, context_of, make_counters, run_job
from headrace.converter._plan import plan_job, plan_writing
from headrace.converter._probe import prepare
from headrace.converter._schema import Declared, Shape
from headrace.converter._show import shown
from headrace.converter._sinks import Entry, Format, remove_objects, stored_name
from headrace.converter._splits import ByFraction, Splits
from headrace.converter._tasks import ROW_SCHEMA, ShardTask, entry_of, split_url
from headrace.errors import HeadraceError
from headrace.storage import (
    DEFAULT_BLOCK_BYTES,
    SHARD_FOLDER,
    Manifest,
    Mode,
    Store,
    StoreOptions,
    open_store,
    options_with_environment,
)
from headrace.storage.mds import Index

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

DEFAULT_SHARD_BYTES = 64 << 20  # large enough that listing and opening cost nothing beside it
_MAX_SWEEPS = 4  # arbitrary: more than one means that a worker was still writing
_SWEEP_PAUSE_S = 0.5  # arbitrary: in which a worker notices that its task is gone


class Settings(TypedDict, total=False):
    """The arguments of `write_shards` on which its result's type does not depend."""

    columns: Sequence[str] | Mapping[str, str] | None
    types: Mapping[str, str | pa.DataType] | None
    shapes: Mapping[str, Shape] | None
    formats: Mapping[str, str] | None
    function: Function | None
    shuffle_seed: int | None
    split_seed: int
    compression: str | None
    compression_level: int | None
    shard_bytes: int
    block_bytes: int
    mode: Mode
    options: StoreOptions | None
    progress: Callable[[Progress], None] | Literal["bar"] | None


@overload
def write_shards(
    df: DataFrame,
    url: str,
    *,
    splits: None = None,
    format: Literal["arrow"] = "arrow",
    **settings: Unpack[Settings],
) -> Manifest: ...
@overload
def write_shards(
    df: DataFrame,
    url: str,
    *,
    splits: Splits,
    format: Literal["arrow"] = "arrow",
    **settings: Unpack[Settings],
) -> dict[str, Manifest]: ...
@overload
def write_shards(
    df: DataFrame,
    url: str,
    *,
    splits: None = None,
    format: Literal["mds"],
    **settings: Unpack[Settings],
) -> Index: ...
@overload
def write_shards(
    df: DataFrame,
    url: str,
    *,
    splits: Splits,
    format: Literal["mds"],
    **settings: Unpack[Settings],
) -> dict[str, Index]: ...
def write_shards(
    df: DataFrame,
    url: str,
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    types: Mapping[str, str | pa.DataType] | None = None,
    shapes: Mapping[str, Shape] | None = None,
    formats: Mapping[str, str] | None = None,
    function: Function | None = None,
    shuffle_seed: int | None = None,
    splits: Splits | None = None,
    split_seed: int = 0,
    format: Format = "arrow",  # noqa: A002 - as Spark's writers call it
    compression: str | None = None,
    compression_level: int | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    mode: Mode = "error",
    options: StoreOptions | None = None,
    progress: Callable[[Progress], None] | Literal["bar"] | None = None,
) -> Manifest | Index | dict[str, Manifest] | dict[str, Index]:
    """Write the rows of ``df`` as samples of a dataset, in the order of its partitions.

    Columns may be numbers, bools, strings, binaries, dates, timestamps, decimals, ML vectors, and
    arrays, maps and structs of these, all with nulls. An array of numbers that ``shapes`` does not
    name becomes a tensor if all its samples have one length, and a list otherwise; it holds no
    null items. ``docs/converter.md`` says what each type becomes.

    Args:
        df: Any DataFrame; its partitions are written in parallel, each into shards of its own.
        url: Where the dataset is or will be: a path that all executors share, or a URL such as
            ``s3://bucket/name``. Executors upload by themselves; Hadoop needs no S3 connector.
            With ``splits``, the folder of the datasets.
        columns: Of ``df``, to keep, in this order; a mapping also renames, from old to new.
        types: To cast stored columns to, such as ``{"label": "int32", "image": "uint8"}``; for an
            array, of its innermost items. A value that does not fit is an error.
        shapes: Sides of tensors by stored column, such as ``{"image": (28, 28)}``, row-major; or
            ``"ragged"`` for lists that must stay lists.
        formats: What the bytes of stored columns are, such as ``{"image": "jpeg"}``; readers get
            it with the column.
        function: Makes samples of rows; then stored columns are those of its schema.
        shuffle_seed: Put the rows into a random order before anything else sees them; ``None``
            keeps the order of partitions and of rows in them.
        splits: Fractions by name, such as ``{"train": 0.9, "val": 0.1}``, or the name of a stored
            column that says each sample's split and is left out itself. Each split is a dataset
            of its own, at ``url/<name>``, all written in one pass.
        split_seed: Chooses the samples, for fractions.
        format: ``arrow``, or ``mds`` for MosaicML Streaming, which has no nulls.
        compression: Of each block: ``lz4``, ``zstd`` or ``none``; default ``lz4``. For ``mds`` of
            each shard: ``none``, ``br``, ``bz2``, ``gz``, ``snappy`` or ``zstd``; default
            ``none``.
        compression_level: As the compression has them; ``None`` is its default.
        shard_bytes: Raw bytes of a shard at most, unless one sample has more.
        block_bytes: Raw bytes of a block at most, unless one sample has more; not for ``mds``.
        mode: Where a dataset is already: ``error`` refuses, ``overwrite`` replaces it and
            ``append`` adds to it; older versions stay readable by fingerprint.
        options: How to reach the store. What is not set is taken from the driver's ``AWS_``
            variables, and sent to executors with the job, secrets included; leave keys out of
            the driver's environment where executors have roles of their own.
        progress: Called a few times a second, and once when the job is done; ``"bar"`` shows a
            bar in a terminal or a notebook.

    Returns:
        The manifest of the version that is now current (``mds``: its index), or with ``splits``
        one for each.

    Raises:
        UnsupportedColumnError: A column cannot be stored; before the job starts.
        ColumnNotFoundError: A column is named that is not there; before the job starts.
        BadArgumentError: An argument or a sample is not as wanted, the function raised, or a
            dataset would have no samples.
        DatasetExistsError: ``mode`` is ``error`` and there is a dataset; before the job starts,
            but for splits by a column, of which the job tells.
        CommitConflictError: Another commit came between.
        StoreRefusedError: The store refuses the driver or an executor.
        StoreUnavailableError: The store could not be reached.
        ObjectNotFoundError: Shards were removed while the job ran.
        ConfigurationError: Executors lack a package or share no path with the driver, which a
            probing task tells before the job; or Spark failed for reasons of its own.
    """
    writing = plan_writing(
        file_format=format,
        compression=compression,
        level=compression_level,
        shard_bytes=shard_bytes,
        block_bytes=block_bytes,
    )
    plan = plan_job(
        df,
        columns=columns,
        declared=Declared(shapes=shapes or {}, types=types or {}, formats=formats or {}),
        function=function,
        shuffle_seed=shuffle_seed,
        splits=splits,
        split_seed=split_seed,
        writing=writing,
    )
    shipped = options_with_environment(options or StoreOptions())
    context = context_of(df)
    counters = make_counters(context) if progress else None
    handover = (bounded_handover if context else plain_handover)(plan.df)
    task = plan.task(
        job=uuid.uuid4().hex[:8],
        url=_absolute(url, shipped),
        options=shipped,
        names=handover.names,
        count=counters,
    )
    with shown(progress) as tell:

        def run() -> Sequence[Row]:
            prepare(df.sparkSession, task)
            job = handover.df.mapInArrow(task, ROW_SCHEMA)
            return run_job(job, properties=handover.properties, counters=counters, progress=tell)

        written = write_task(task, run, mode=mode)
    if splits is None:
        return written[""]
    return cast("dict[str, Manifest] | dict[str, Index]", written)


def _absolute(url: str, options: StoreOptions) -> str:
    store = open_store(url, options=options)
    try:
        return store.url
    finally:
        store.close()


def write_task(
    task: ShardTask, run: Callable[[], Sequence[Row | Mapping[str, Any]]], *, mode: Mode
) -> dict[str, Written]:
    """Run a task over all partitions and commit its shards; the head of the module says how.

    Args:
        task: What is run.
        run: Runs it over each partition and returns the rows of `ROW_SCHEMA` that it yielded.
        mode: As for `write_shards`.
    """
    with contextlib.ExitStack() as stack:
        stores = _Stores(task, stack)
        commits = Commits()
        shards: dict[str, list[Entry]] = {split: [] for split in stores.known}
        for split in stores.known:
            check_target(stores.at(split), mode, task.writing.format)
        try:
            rows = run()
            _sort_in(rows, shards)
            commit_splits(
                commits,
                {split: stores.at(split) for split in shards},
                shards,
                schema=schema_with_formats(
                    task.schema, [json.loads(row["formats"]) for row in rows]
                ),
                mode=mode,
                file_format=task.writing.format,
            )
        finally:
            done = commits.written.keys() | commits.maybe
            keep = {
                stored_name(entry) if not split else f"{split}/{stored_name(entry)}"
                for split in done
                for entry in shards[split]
            }
            # Shards of one arrow dataset are in one folder; all others lie about.
            alone = task.writing.format == "arrow" and task.splitter is None
            folder = f"{SHARD_FOLDER}/" if alone else ""
            _sweep(stores.root, task.job, folder=folder, keep=keep)
        return commits.written


class _Stores:
    """The stores of the datasets of one job, opened when they are asked for."""

    def __init__(self, task: ShardTask, stack: contextlib.ExitStack) -> None:
        self._task = task
        self._stack = stack
        self._open: dict[str, Store] = {}
        self.root = self.at("")

    @property
    def known(self) -> tuple[str, ...]:
        """Splits that are known before the job."""
        splitter = self._task.splitter
        if isinstance(splitter, ByFraction):
            return splitter.names
        return () if splitter else ("",)

    def at(self, split: str) -> Store:
        if split not in self._open:
            store = open_store(split_url(self._task.url, split), options=self._task.options)
            self._stack.callback(store.close)
            self._open[split] = store
        return self._open[split]


def _sort_in(rows: Sequence[Row | Mapping[str, Any]], shards: dict[str, list[Entry]]) -> None:
    """Enter the shards of all tasks by split, in the order that sample ids follow."""
    ordered = sorted(rows, key=lambda row: (row["split"], row["partition"], row["sequence"]))
    for row in ordered:
        shards.setdefault(row["split"], []).append(entry_of(row))


def _sweep(store: Store, job: str, *, folder: str, keep: Iterable[str]) -> None:
    """Remove shards of this job that no manifest names: those of failed and killed tasks.

    A Python worker outlives its task by moments and may publish one shard more, so a sweep that
    found something is followed by another.
    """
    kept = set(keep)
    with contextlib.suppress(HeadraceError):
        for _ in range(_MAX_SWEEPS):
            found = [name for name in store.list(folder) if f"-{job}" in name and name not in kept]
            if not found:
                return
            remove_objects(store, found)
            time.sleep(_SWEEP_PAUSE_S)
