"""Write a DataFrame by Spark's own writer: ``df.write.format("headrace")``, of Spark 4.

Contract:

1. Success: one commit at the end, as `write_shards` makes it, of the attempts that Spark accepted.
2. Failure: the dataset is unchanged, and what tasks wrote is removed.
3. Killed driver: as 2, but the shards stay until `headrace gc` removes them.
4. A note of `TASK_LIFE_S` keeps gc from removing what a living job has written. A writer whose note
   is gone does not commit.

Spark makes the writer in one process of the driver, and commits or aborts in another, so nothing
can be renewed between them. What is written there are the tasks of `write_shards`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from headrace.converter.local.convert_pieces import MergeInThreads
from headrace.converter.plan.plan import WantedConversion, plan_samples
from headrace.converter.plan.write_options import WriteOptions
from headrace.converter.tasks.commit import check_target, try_committing
from headrace.converter.tasks.outcome import make_task, sweep, write_task
from headrace.converter.tasks.shard_task import ShardTask, entry_of
from headrace.converter.tasks.sinks import remove_objects, stored_name
from headrace.errors import BadArgumentError, CommitConflictError, HeadraceError
from headrace.storage import Mode, StoreOptions, open_store, options_with_environment
from headrace.storage.dataset.writer_notes import TASK_LIFE_S, leave_note

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_PATH = "path"
_MERGING = 8  # groups of small shards at once, each of which holds a few MiB
_READERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("types", "shapes", "formats", "classes"), json.loads),
    **dict.fromkeys(("compression", "lengths"), str),
    **dict.fromkeys(("compression_level", "shard_bytes", "block_bytes"), int),
}
_STORE = ("endpoint", "region", "profile", "addressing")


@dataclass(frozen=True, slots=True)
class Shards(WriterCommitMessage):
    """The rows of `ROW_SCHEMA` of one task."""

    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ShardWriter(DataSourceArrowWriter):
    """Writes the shards of one job. Picklable.

    Attributes:
        task: What tasks do.
        mode: What to do with a dataset that is there.
        note: The name of the note of this job.
    """

    task: ShardTask
    mode: Mode
    note: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Shards:  # type: ignore[override] # as Spark's own stubs ask for
        """Write the rows of one partition."""
        rows = (row for batch in self.task.attempt(iterator) for row in batch.to_pylist())
        return self.finished(list(rows))

    def finished(self, rows: Sequence[Mapping[str, Any]]) -> Shards:
        """Return the shards of a task, or remove them if its job is over, as failed jobs may be.

        `abort` removes the note and then sweeps, and a task writes and then looks for the note; so
        one of the two removes what is written.

        Raises:
            CommitConflictError: The job is over.
        """
        with contextlib.closing(open_store(self.task.url, options=self.task.options)) as store:
            if store.entry(self.note) is None:
                remove_objects(store, [stored_name(entry_of(row)) for row in rows])
                raise CommitConflictError(
                    f"the job that wrote to {store.url} has ended; what this task wrote is removed",
                    url=store.url,
                )
        return Shards(rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the shards of all tasks."""
        rows = [row for one in messages if isinstance(one, Shards) for row in one.rows]
        merge = MergeInThreads(self.task, _MERGING)
        with contextlib.closing(open_store(self.task.url, options=self.task.options)) as store:
            if store.entry(self.note) is None:
                raise CommitConflictError(
                    f"the job that wrote to {store.url} ran for longer than {TASK_LIFE_S // 3600} "
                    "hours, or was swept by `headrace gc`; nothing was committed, write it again, "
                    "a longer one with write_shards",
                    url=store.url,
                )
            try:
                write_task(self.task, lambda: rows, merge=merge, mode=self.mode)
            finally:
                with contextlib.suppress(HeadraceError):
                    store.delete(self.note)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        """Remove what tasks wrote."""
        with contextlib.closing(open_store(self.task.url, options=self.task.options)) as store:
            with contextlib.suppress(HeadraceError):
                store.delete(self.note)
            sweep(store, self.task.job)


def shard_writer(schema: StructType, options: Mapping[str, str], *, mode: Mode) -> ShardWriter:
    """Return the writer of a new job, if the target can be written.

    Args:
        schema: The columns of the DataFrame.
        options: Of `save` and `option`: ``path``, fields of `WriteOptions`, those with mappings as
            JSON, and some of `StoreOptions`.
        mode: What to do with a dataset that is there.

    Raises:
        BadArgumentError: An option is unknown or invalid.
        UnsupportedColumnError: A column cannot be stored.
        HeadraceError: The store cannot be written.
    """
    given = {name.lower(): value for name, value in options.items()}
    write = WriteOptions(**{name: _value(name, given[name]) for name in given if name in _READERS})
    store_options = StoreOptions(**{name: given[name] for name in _STORE if name in given})  # type: ignore[arg-type] # checked there
    if unknown := sorted(given.keys() - {_PATH, *_READERS, *_STORE}):
        raise BadArgumentError(
            f"headrace has no option {', '.join(map(repr, unknown))}; it has "
            f"{', '.join([*_READERS, *_STORE])}, and credentials come from the environment",
            field=unknown[0],
        )
    if _PATH not in given:
        raise BadArgumentError("give the URL of the dataset: save('s3://bucket/name')", field=_PATH)
    wanted = WantedConversion(
        columns=None,
        write=write,
        splits=None,
        split_seed=0,
        writing=write.writing("arrow"),
        mode=mode,
        options=options_with_environment(store_options),
    )
    plan = plan_samples(schema, wanted)
    names = tuple(schema.fieldNames())
    task = make_task(plan, given[_PATH], options=wanted.options, names=names, count=None)
    with contextlib.closing(open_store(task.url, options=task.options)) as store:
        check_target(store, mode, "arrow")
        try_committing(store, task.job)
        return ShardWriter(task, mode, leave_note(store, task.job, life_s=TASK_LIFE_S))


def _value(name: str, text: str) -> Any:
    try:
        return _READERS[name](text)
    except ValueError as error:
        wanted = "a whole number" if _READERS[name] is int else "a mapping as JSON"
        raise BadArgumentError(f"{name} is {text!r}, expected {wanted}", field=name) from error
