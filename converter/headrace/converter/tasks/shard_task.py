"""What an executor does with one partition: cut it into shards and upload them.

Contract of `ShardTask`:

1. Success: one row for each shard, sent when the shard is complete in the store. Only rows of
   attempts that Spark accepts reach the driver, so a retried or speculative attempt adds nothing
   to the manifest.
2. Names contain the job and the attempt, so no attempt overwrites the shards of another.
3. Failure or cancellation: the attempt removes the shards that it has written, as far as it can.
   What a killed process leaves is in no manifest; the driver or a later sweep removes it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.converter.columns.stored_columns import ColumnPlan, stored_batch
from headrace.converter.columns.vectors import dense_lists
from headrace.converter.samples.function import FunctionPlan, run_function
from headrace.converter.samples.splits import MAX_SPLITS, ByColumn, Splitter
from headrace.converter.tasks.binary_formats import Formats
from headrace.converter.tasks.failure import packed_for_driver
from headrace.converter.tasks.sinks import Entry, Sink, Writing, open_sink, raw_bytes_of
from headrace.errors import BadArgumentError, InternalError
from headrace.storage import Store, StoreOptions, open_store
from headrace.storage.dataset.writer_notes import TASK_LIFE_S, leave_note

ROW_SCHEMA = "split string, partition int, sequence int, entry binary, formats string"
"""Spark's schema of the rows that a task yields, one for each shard."""

_ARROW_TYPES: dict[str, pa.DataType] = {
    "split": pa.string(),
    "partition": pa.int32(),
    "sequence": pa.int32(),
    "entry": pa.binary(),
    "formats": pa.string(),
}
_ARROW_SCHEMA = pa.schema(_ARROW_TYPES)


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """How rows become samples of shards, in Spark or outside. Picklable.

    Attributes:
        columns: A plan for each column of the samples, the column of splits included.
        writing: How shards are written.
        splitter: Assigns samples to splits; `None` for a single dataset.
        function: Makes samples from rows.
        vectors: Indices of columns of vectors among the columns that the function receives.
    """

    columns: tuple[ColumnPlan, ...]
    writing: Writing
    splitter: Splitter | None = None
    function: FunctionPlan | None = None
    vectors: tuple[int, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The columns of shards: all except the one that names splits."""
        split = self.splitter.column if isinstance(self.splitter, ByColumn) else None
        return pa.schema([plan.field for plan in self.columns if plan.field.name != split])


@dataclass(frozen=True, slots=True)
class ShardTask:
    """The function that Spark maps over partitions. Picklable.

    Attributes:
        job: The job's part of every shard's name.
        url: The URL, as executors see it, of the dataset or of the datasets of all splits.
        options: How executors reach it.
        plan: How rows become shards.
        names: The names of the columns that Spark passes on.
        count: Called with the samples and the raw bytes of each finished shard.
        tell: See `packed_for_driver`.
    """

    job: str
    url: str
    options: StoreOptions
    plan: SamplePlan
    names: tuple[str, ...] = ()
    count: Callable[[int, int], None] | None = None
    tell: Callable[[str], None] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the shards of one partition and yield a row for each."""
        with packed_for_driver(self.tell):
            yield from self.attempt(batches)

    def attempt(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the same, with errors as they are."""
        from pyspark import TaskContext  # noqa: PLC0415 - files are converted without Spark

        from headrace.converter.tasks.handover import taken_over  # noqa: PLC0415 - as above

        context = TaskContext.get()
        if context is None:
            raise InternalError("a shard task only runs inside a Spark task")
        partition, attempt = context.partitionId(), context.taskAttemptId()
        stem = f"{partition:05d}-{self.job}{attempt:04x}"
        yield from self.rows(taken_over(batches, self.names), partition=partition, stem=stem)

    def rows(
        self, batches: Iterator[pa.RecordBatch], *, partition: int, stem: str
    ) -> Generator[pa.RecordBatch, None, None]:
        """Do the same outside Spark too.

        Args:
            batches: The batches of the partition.
            partition: The number of the partition.
            stem: Part of the name of every shard, unique to this attempt.
        """
        shards = _Shards(self, stem=stem)
        accepted = False
        sequence = 0
        try:
            for split, entry in self._finished(shards, batches, partition):
                if self.count is not None:
                    self.count(entry.sample_count, raw_bytes_of(entry))
                yield row_of(
                    entry,
                    split=split,
                    partition=partition,
                    sequence=sequence,
                    formats=shards.formats(split),
                )
                sequence += 1
            accepted = True
        finally:
            if not accepted:
                shards.abort()
            shards.close_stores()

    def _finished(
        self, shards: _Shards, batches: Iterator[pa.RecordBatch], partition: int
    ) -> Iterator[tuple[str, Entry]]:
        first_sample = 0
        for batch in self._samples(batches, partition):
            stored = stored_batch(batch, self.plan.columns, first_sample=first_sample)
            for split, part in self._parts(stored, partition, first_sample):
                yield from shards.append(split, part)
            first_sample += batch.num_rows
        yield from shards.close()

    def _samples(
        self, batches: Iterator[pa.RecordBatch], partition: int
    ) -> Iterator[pa.RecordBatch]:
        if self.plan.function is None:
            return batches
        given = (_with_lists(batch, self.plan.vectors) for batch in batches)
        return run_function(self.plan.function, given, partition=partition)

    def _parts(
        self, batch: pa.RecordBatch, partition: int, first_sample: int
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self.plan.splitter is None:
            return iter([("", batch)])
        return self.plan.splitter.parts(batch, partition=partition, first_sample=first_sample)


class _Shards:
    """The open shards of one attempt: one sink a split, opened with its first sample."""

    def __init__(self, task: ShardTask, *, stem: str) -> None:
        self._task = task
        self._stem = stem
        self._schema = task.plan.schema
        self._stores: list[Store] = []
        self._sinks: dict[str, Sink] = {}
        self._formats: dict[str, Formats] = {}

    def formats(self, split: str) -> dict[str, str]:
        """Return the formats of a split's binary columns so far; its last row holds for all."""
        return self._formats[split].found

    def append(self, split: str, batch: pa.RecordBatch) -> Iterator[tuple[str, Entry]]:
        sink = self._sinks.get(split) or self._open(split)
        self._formats[split].see(batch)
        for entry in sink.append(batch):
            yield split, entry

    def close(self) -> Iterator[tuple[str, Entry]]:
        for split, sink in self._sinks.items():
            for entry in sink.close():
                yield split, entry

    def abort(self) -> None:
        for sink in self._sinks.values():
            sink.abort()

    def close_stores(self) -> None:
        for store in self._stores:
            store.close()

    def _open(self, split: str) -> Sink:
        if len(self._sinks) == MAX_SPLITS:
            raise BadArgumentError(
                f"more than {MAX_SPLITS} splits found, {split!r} among them; each is a dataset of "
                "its own, so choose a column with fewer values",
                field="splits",
            )
        store = open_store(split_url(self._task.url, split), options=self._task.options)
        self._stores.append(store)
        if isinstance(self._task.plan.splitter, ByColumn):
            # The driver learns of this split, and leaves a note of its own, when the task is done.
            leave_note(store, self._task.job, life_s=TASK_LIFE_S)
        sink = open_sink(store, self._schema, self._task.plan.writing, stem=self._stem)
        self._sinks[split] = sink
        self._formats[split] = Formats(self._schema)
        return sink


def split_url(url: str, split: str) -> str:
    """Return the URL of the dataset of a split."""
    return f"{url.rstrip('/')}/{split}" if split else url


def row_of(
    entry: Entry, *, split: str, partition: int, sequence: int, formats: dict[str, str]
) -> pa.RecordBatch:
    """Return the row that reports a shard to the driver."""
    content = pickle.dumps(entry)
    values: Sequence[object] = (split, partition, sequence, content, json.dumps(formats))
    columns = [
        pa.array([value], field.type) for value, field in zip(values, _ARROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def entry_of(row: Any) -> Entry:
    """Return the shard that a row of `ROW_SCHEMA` reports."""
    entry: Entry = pickle.loads(bytes(row["entry"]))  # noqa: S301 - of our own task, as all that Spark moves
    return entry


def _with_lists(batch: pa.RecordBatch, vectors: tuple[int, ...]) -> pa.RecordBatch:
    for place in vectors:
        lists = dense_lists(batch.column(place))
        batch = batch.set_column(place, batch.schema.names[place], lists)
    return batch
