"""Run a task over all its partitions, and commit or sweep what it wrote.

Contract of `write_task`:

1. Success: one commit a dataset at the end, so a reader sees either the old or the whole new one.
2. Failure, conflict or interrupt before the commit: no dataset has changed, and the shards of this
   job are removed as far as they can be found.
3. Killed driver: as 2, but the shards stay until `headrace gc` removes them; no manifest names
   them. As long as the driver lives, gc of any age leaves them, because of its notes.
4. A commit whose answer was lost, or that was interrupted, keeps its shards, because it may have
   happened.
5. Splits are committed separately, one after another, when all have been written.
6. Small neighbouring shards are merged before the commits (`tasks/merge.py`). If that fails, the
   job fails.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.converter.samples.splits import ByFraction
from headrace.converter.tasks.binary_formats import schema_with_formats
from headrace.converter.tasks.commit import (
    Commits,
    Written,
    check_splits,
    check_target,
    commit_splits,
    try_committing,
)
from headrace.converter.tasks.merge import ShardGroup, jobs_of, plan_merges, put_merged
from headrace.converter.tasks.shard_task import SamplePlan, ShardTask, entry_of, split_url
from headrace.converter.tasks.sinks import Entry, remove_objects, stored_name
from headrace.errors import HeadraceError
from headrace.storage import SHARD_FOLDER, Mode, Store, StoreOptions, open_store
from headrace.storage.dataset.writer_notes import WriterNotes
from headrace.storage.packing.lengths import document_column

if TYPE_CHECKING:
    from pyspark.sql import Row

_MAX_SWEEPS = 4  # arbitrary: more than one means that a worker was still writing
_SWEEP_PAUSE_S = 0.5  # arbitrary: a worker notices within this time that its task is gone


def make_task(
    plan: SamplePlan,
    url: str,
    *,
    options: StoreOptions,
    names: tuple[str, ...] = (),
    count: Callable[[int, int], None] | None,
    tell: Callable[[str], None] | None = None,
) -> ShardTask:
    """Return the task of a new job.

    Args:
        plan: How rows become shards.
        url: The URL as the user wrote it; tasks receive all of it.
        options: How tasks reach the store.
        names: See `ShardTask`.
        count: See `ShardTask`.
        tell: See `ShardTask`.
    """
    with contextlib.closing(open_store(url, options=options)) as store:
        place = store.url
    return ShardTask(uuid.uuid4().hex[:8], place, options, plan, names, count, tell)


def write_task(
    task: ShardTask,
    run: Callable[[], Sequence[Row | Mapping[str, Any]]],
    *,
    merge: Callable[[tuple[ShardGroup, ...]], Sequence[Row | Mapping[str, Any]]],
    mode: Mode,
    least_samples: int = 0,
) -> dict[str, Written]:
    """Run a task over all partitions and commit its shards, as the contract above says.

    Args:
        task: The task to run.
        run: Runs it over all partitions and returns the rows of `ROW_SCHEMA` that it yielded.
        merge: Merges groups of small shards with a `MergeTask` and returns the rows it yielded.
        mode: See `write_shards`.
        least_samples: The minimum number of samples of a dataset.
    """
    with contextlib.ExitStack() as stack:
        stores = _Stores(task, stack)
        if task.plan.writing.lengths is not None:
            document_column(task.plan.schema, task.plan.writing.lengths)
        commits = Commits()
        notes = stack.enter_context(WriterNotes(task.job))
        shards: dict[str, list[Entry]] = {split: [] for split in stores.known}
        for split in stores.known:
            check_target(stores.at(split), mode, task.plan.writing.format)
        try_committing(stores.root, task.job)
        for split in stores.known:
            notes.leave(stores.at(split))
        try:
            rows = run()
            _sort_in(rows, shards)
            for split in shards:
                notes.leave(stores.at(split))
            groups = plan_merges(shards, shard_bytes=task.plan.writing.shard_bytes)
            for job in reversed(jobs_of(groups)):  # so that earlier indices stay valid
                put_merged(shards, job, merge(job))
            targets = {split: stores.at(split) for split in shards}
            check_splits(targets, shards, mode=mode, file_format=task.plan.writing.format)
            notes.check()
            commit_splits(
                commits,
                targets,
                shards,
                schema=schema_with_formats(
                    task.plan.schema, [json.loads(row["formats"]) for row in rows]
                ),
                mode=mode,
                file_format=task.plan.writing.format,
                least_samples=least_samples,
                lengths=task.plan.writing.lengths,
            )
        finally:
            done = commits.written.keys() | commits.maybe
            keep = {
                stored_name(entry) if not split else f"{split}/{stored_name(entry)}"
                for split in done
                for entry in shards[split]
            }
            # Only the shards of a single arrow dataset are all in one folder.
            alone = task.plan.writing.format == "arrow" and task.plan.splitter is None
            folder = f"{SHARD_FOLDER}/" if alone else ""
            sweep(stores.root, task.job, folder=folder, keep=keep)
        return commits.written


class _Stores:
    """The stores of the datasets of one job, each opened when it is first needed."""

    def __init__(self, task: ShardTask, stack: contextlib.ExitStack) -> None:
        self._task = task
        self._stack = stack
        self._open: dict[str, Store] = {}
        self.root = self.at("")

    @property
    def known(self) -> tuple[str, ...]:
        """Splits that are known before the job."""
        splitter = self._task.plan.splitter
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


def sweep(
    store: Store, job: str, *, folder: str = f"{SHARD_FOLDER}/", keep: Iterable[str] = ()
) -> None:
    """Remove shards of this job that no manifest names: those of failed and killed tasks.

    A Python worker may outlive its task for a moment and publish one more shard, so a sweep that
    found something is followed by another.

    Args:
        store: The store of the dataset, or of the datasets of all splits.
        job: The job.
        folder: Where to look.
        keep: The names of shards that manifests name.
    """
    kept = set(keep)
    with contextlib.suppress(HeadraceError):
        for _ in range(_MAX_SWEEPS):
            found = [name for name in store.list(folder) if f"-{job}" in name and name not in kept]
            if not found:
                return
            remove_objects(store, found)
            time.sleep(_SWEEP_PAUSE_S)
