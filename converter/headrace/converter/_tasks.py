"""What an executor does with one partition: cut it into shards and upload them.

Contract of `ShardTask`:

1. Success: one row for each shard, in order, after the shard is whole in the store. Only the
   rows of attempts that Spark accepts reach the driver, so a retried or speculative attempt
   adds nothing to the manifest.
2. Names hold the job and the attempt, so no attempt writes over the shards of another.
3. Failure or cancel: the attempt removes the shards it has written, as far as it still can.
   What a killed process leaves is swept by the driver, or later, and is in no manifest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from headrace.converter._columns import ColumnPlan, stored_batch
from headrace.converter._job import Counters
from headrace.errors import HeadraceError, InternalError
from headrace.storage import (
    BLOCK_DTYPE,
    SHARD_FOLDER,
    ColumnStats,
    Compression,
    ShardEntry,
    ShardWriter,
    Store,
    StoreOptions,
    open_store,
    sample_bytes,
)

ROW_SCHEMA = (
    "partition int, sequence int, name string, stored_bytes long, blocks binary, "
    "null_counts array<long>, shortest array<long>, longest array<long>"
)
"""Spark's schema of what a task yields: one row a shard."""

_LENGTHS = pa.list_(pa.int64())
_ARROW_FIELDS: dict[str, pa.DataType] = {
    "partition": pa.int32(),
    "sequence": pa.int32(),
    "name": pa.string(),
    "stored_bytes": pa.int64(),
    "blocks": pa.binary(),
    "null_counts": _LENGTHS,
    "shortest": _LENGTHS,
    "longest": _LENGTHS,
}


@dataclass(frozen=True, slots=True)
class ShardTask:
    """The function that Spark maps over partitions. Picklable.

    Attributes:
        job: Part of every shard's name.
        url: Where the dataset is, as executors see it.
        options: How executors reach it.
        plans: One a column.
        compression: Of the blocks.
        shard_bytes: Raw bytes after which a shard ends.
        block_bytes: Raw bytes of a block.
        count: Called with samples and raw bytes of each finished shard.
    """

    job: str
    url: str
    options: StoreOptions
    plans: tuple[ColumnPlan, ...]
    compression: Compression
    shard_bytes: int
    block_bytes: int
    count: Counters | None = None

    @property
    def schema(self) -> pa.Schema:
        """Columns as shards hold them."""
        return pa.schema([plan.field for plan in self.plans])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the shards of one partition and yield a row for each."""
        context = TaskContext.get()
        if context is None:
            raise InternalError("a shard task runs in a Spark task only")
        partition, attempt = context.partitionId(), context.taskAttemptId()
        store = open_store(self.url, options=self.options)
        written: list[str] = []
        accepted = False
        try:
            for sequence, entry in enumerate(self._shards(store, batches, partition, attempt)):
                written.append(entry.name)
                if self.count is not None:
                    self.count(entry.sample_count, entry.raw_bytes)
                yield row_of(entry, partition=partition, sequence=sequence)
            accepted = True
        finally:
            if not accepted:
                remove_shards(store, written)
            store.close()

    def _shards(
        self, store: Store, batches: Iterator[pa.RecordBatch], partition: int, attempt: int
    ) -> Iterator[ShardEntry]:
        pieces = _pieces(_stored(batches, self.plans), self.shard_bytes)
        for sequence, shard in enumerate(pieces):
            name = f"{partition:05d}-{sequence:04d}-{self.job}{attempt:04x}.arrow"
            with ShardWriter(
                store,
                name,
                schema=self.schema,
                compression=self.compression,
                block_bytes=self.block_bytes,
            ) as writer:
                for batch in shard:
                    writer.append(batch)
                yield writer.close()


def row_of(entry: ShardEntry, *, partition: int, sequence: int) -> pa.RecordBatch:
    """Return the row that tells the driver of a shard."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "partition": partition,
                "sequence": sequence,
                "name": entry.name,
                "stored_bytes": entry.stored_bytes,
                "blocks": entry.blocks.tobytes(),
                "null_counts": [stats.null_count for stats in entry.columns],
                "shortest": [stats.shortest for stats in entry.columns],
                "longest": [stats.longest for stats in entry.columns],
            }
        ],
        schema=pa.schema(_ARROW_FIELDS),
    )


def entry_of(row: Any) -> ShardEntry:
    """Return the shard that a row of `ROW_SCHEMA` tells of."""
    return ShardEntry(
        name=row["name"],
        stored_bytes=row["stored_bytes"],
        blocks=np.frombuffer(bytes(row["blocks"]), BLOCK_DTYPE),
        columns=tuple(
            ColumnStats(null_count=nulls, shortest=shortest, longest=longest)
            for nulls, shortest, longest in zip(
                row["null_counts"], row["shortest"], row["longest"], strict=True
            )
        ),
    )


def remove_shards(store: Store, names: Sequence[str]) -> None:
    """Delete shards that no manifest names, as far as the store lets us."""
    for name in names:
        with contextlib.suppress(HeadraceError):
            store.delete(f"{SHARD_FOLDER}/{name}")


def _stored(
    batches: Iterator[pa.RecordBatch], plans: tuple[ColumnPlan, ...]
) -> Iterator[pa.RecordBatch]:
    first_sample = 0
    for batch in batches:
        yield stored_batch(batch, plans, first_sample=first_sample)
        first_sample += batch.num_rows


def _pieces(
    batches: Iterator[pa.RecordBatch], shard_bytes: int
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Cut a stream of batches into streams of at most ``shard_bytes``, or of one sample.

    Each stream has to be used up before the next is asked for.
    """
    source = _Cutter(batches, shard_bytes)
    while source.has_more():
        yield source.shard()


class _Cutter:
    def __init__(self, batches: Iterator[pa.RecordBatch], shard_bytes: int) -> None:
        self._batches = batches
        self._shard_bytes = shard_bytes
        self._rest: pa.RecordBatch | None = None

    def has_more(self) -> bool:
        while self._rest is None or not self._rest.num_rows:
            self._rest = next(self._batches, None)
            if self._rest is None:
                return False
        return True

    def shard(self) -> Iterator[pa.RecordBatch]:
        room = self._shard_bytes
        is_empty = True
        while self.has_more():
            assert self._rest is not None
            ends = np.cumsum(sample_bytes(self._rest))
            fitting = int(np.searchsorted(ends, room, side="right"))
            if is_empty:
                fitting = max(1, fitting)
            if fitting:
                yield self._rest.slice(0, fitting)
                room -= int(ends[fitting - 1])
                is_empty = False
            cut_short = fitting < self._rest.num_rows
            self._rest = self._rest.slice(fitting)
            if cut_short:
                return
