"""Write a DataFrame as a dataset: executors upload shards, the driver commits them.

`headrace.converter.tasks.outcome` describes the results of success, failure and a killed driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast, overload

from headrace.converter.api.arguments import (
    check_frame,
    check_means,
    check_place,
    check_seeds,
    check_splits,
    columns_of,
)
from headrace.converter.plan.plan import WantedConversion
from headrace.converter.plan.write_options import WriteOptions, write_options_of
from headrace.converter.progress.bar import shown
from headrace.converter.progress.progress import Progress, Stages
from headrace.converter.samples.function import Function
from headrace.converter.samples.splits import Splits
from headrace.converter.spark.job import context_of, make_counters, run_job
from headrace.converter.spark.neighbours import by_neighbours
from headrace.converter.spark.plan_rows import plan_rows
from headrace.converter.spark.probe import prepare
from headrace.converter.tasks.commit import Written
from headrace.converter.tasks.handover import bounded_handover, plain_handover
from headrace.converter.tasks.merge import MergeTask, ShardGroup
from headrace.converter.tasks.outcome import make_task, write_task
from headrace.converter.tasks.shard_task import ROW_SCHEMA
from headrace.converter.tasks.sinks import Format
from headrace.storage import (
    Manifest,
    Mode,
    StoreOptions,
    options_with_environment,
)
from headrace.storage.mds import Index

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


class Settings(TypedDict, total=False):
    """The arguments of `write_shards` that do not affect the type of its result."""

    columns: Sequence[str] | Mapping[str, str] | None
    function: Function | None
    shuffle_seed: int | None
    split_seed: int
    write: WriteOptions | None
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
    function: Function | None = None,
    shuffle_seed: int | None = None,
    splits: Splits | None = None,
    split_seed: int = 0,
    format: Format = "arrow",  # noqa: A002 - as Spark's writers call it
    write: WriteOptions | None = None,
    mode: Mode = "error",
    options: StoreOptions | None = None,
    progress: Callable[[Progress], None] | Literal["bar"] | None = None,
) -> Manifest | Index | dict[str, Manifest] | dict[str, Index]:
    """Write the rows of ``df`` as samples of a dataset, in the order of its partitions.

    Columns may be numbers, bools, strings, binaries, dates, timestamps, decimals, ML vectors, and
    arrays, maps and structs of these, all with nulls. An array of numbers that ``write.shapes``
    does not name becomes a tensor if all its samples have one length, and a list otherwise; it
    holds no null items. ``docs/converter.md`` describes how each type is stored.

    Args:
        df: Any DataFrame; its partitions are written in parallel. Most shards have
            ``write.shard_bytes``, however small the partitions are.
        url: Where the dataset is or will be: a path that all executors share, or a URL such as
            ``s3://bucket/name``. Executors upload directly; Hadoop needs no S3 connector.
            With ``splits``, the folder of the datasets.
        columns: Columns of ``df`` to keep, in this order; a mapping from old to new names also
            renames them.
        function: Turns rows into samples; the stored columns are then those of its schema.
        shuffle_seed: Put the rows into a random order first; ``None`` keeps the order of partitions
            and of rows in them.
        splits: Fractions by name, such as ``{"train": 0.9, "val": 0.1}``, or the name of a stored
            column that names each sample's split and is itself left out. Each split becomes a
            dataset at ``url/<name>``; all are written in one pass.
        split_seed: Seed that assigns samples to splits, for fractions.
        format: ``arrow``, or ``mds`` for MosaicML Streaming, which has no nulls.
        write: How columns are stored and files written: types, shapes, compression, sizes; `None`
            for the defaults.
        mode: What to do if there already is a dataset: ``error`` refuses, ``overwrite`` replaces it
            and ``append`` adds to it; older versions stay readable by fingerprint.
        options: How to reach the store. Unset options are taken from the driver's ``AWS_``
            variables and sent to executors with the job, secrets included; if executors have roles
            of their own, leave keys out of the driver's environment.
        progress: Called a few times a second, and once when the job is done; ``"bar"`` shows a
            bar in a terminal or a notebook.

    Returns:
        The manifest of the version that is now current (``mds``: its index), or with ``splits``
        one for each.

    Raises:
        UnsupportedColumnError: A column cannot be stored; before the job starts.
        ColumnNotFoundError: A named column does not exist; before the job starts.
        BadArgumentError: An argument or a sample is invalid, the function raised, or a dataset
            would have no samples.
        DatasetExistsError: ``mode`` is ``error`` and there is a dataset; before the job starts,
            or at its end with splits by a column.
        CommitConflictError: Another commit was first.
        StoreRefusedError: The store refuses the driver or an executor.
        StoreUnavailableError: The store could not be reached.
        ObjectNotFoundError: Shards were removed while the job ran.
        ConfigurationError: Executors lack a package or share no path with the driver, which a
            probe finds out before the job; or Spark failed for other reasons.
    """
    check_frame(df)
    check_place(url, mode=mode)
    check_seeds(shuffle_seed=shuffle_seed, split_seed=split_seed)
    check_splits(splits)
    write = write_options_of(write)
    check_means(options=options, progress=progress, function=function)
    wanted = WantedConversion(
        columns=columns_of(columns),
        write=write,
        function=function,
        shuffle_seed=shuffle_seed,
        splits=splits,
        split_seed=split_seed,
        writing=write.writing(format),
        mode=mode,
        options=options_with_environment(options or StoreOptions()),
    )
    written = write_rows(df, url, wanted=wanted, progress=progress)
    if splits is None:
        return written[""]
    return cast("dict[str, Manifest] | dict[str, Index]", written)


def write_rows(
    df: DataFrame,
    url: str,
    *,
    wanted: WantedConversion,
    progress: Callable[[Progress], None] | Literal["bar"] | None,
) -> dict[str, Written]:
    """Write the rows of ``df``, by split; see `write_shards`.

    Raises:
        HeadraceError: See `write_shards`.
    """
    rows, plan = plan_rows(df, wanted)
    context = context_of(df)
    counters = make_counters(context)
    handover = (bounded_handover if context else plain_handover)(rows)
    task = make_task(
        plan,
        url,
        options=wanted.options,
        names=handover.names,
        count=counters if progress else None,
        tell=counters.failure.add if counters else None,
    )
    # A function is called once per partition, and fractions draw by the number of a partition.
    groups = bool(context) and plan.function is None and plan.splitter is None

    def shards_of(rows: DataFrame) -> DataFrame:
        found = by_neighbours(rows, task_bytes=plan.writing.shard_bytes) if groups else rows
        return found.mapInArrow(task, ROW_SCHEMA)

    with shown(progress) as tell:
        stages = Stages(tell)

        def run() -> Sequence[Row]:
            prepare(df.sparkSession, task)
            return run_job(
                handover.df,
                made=shards_of,
                properties=handover.properties,
                counters=counters,
                progress=stages.next(),
            )

        def merge(groups: tuple[ShardGroup, ...]) -> Sequence[Row]:
            numbers = df.sparkSession.range(0, len(groups), 1, len(groups))
            merging = MergeTask(replace(task, count=None, tell=None), groups)
            return run_job(numbers.mapInArrow(merging, ROW_SCHEMA), progress=stages.next())

        return write_task(task, run, merge=merge, mode=wanted.mode)
