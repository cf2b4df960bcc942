"""Merge neighbouring small shards of a job before its commit, without changing their samples.

Contract:

1. Success: a shard stands for a run of neighbours and has their samples in their order. The
   neighbours are named by no manifest, and are swept when the job ends.
2. Names hold the job and the attempt, as those of `ShardTask` do, so what a retried, speculative
   or killed attempt leaves is in no manifest and is swept too.
3. A merge that has more or fewer samples than its neighbours is an error, and nothing is committed.
4. Memory: a stored small shard, a block and what the store's writer holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.converter._failure import told_to_driver
from headrace.converter._sinks import Entry, open_sink, raw_bytes_of, stored_name
from headrace.converter._tasks import ShardTask, entry_of, row_of, split_url
from headrace.errors import InternalError
from headrace.storage import BlockPlace, ShardEntry, Store, open_store
from headrace.storage.shard.block import decode_block
from headrace.storage.shard.decoder import BlockDecoder

if TYPE_CHECKING:
    from pyspark.sql import Row

LEAST_SAVED = 16
"""Shards that merging must save: fewer are not worth another stage of the job."""

MOST_ENTRIES = 8192
"""Shards merged by one job of Spark, which sends their block tables to its tasks."""


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring shards of one split that become one. Picklable.

    Attributes:
        split: Whose shards they are.
        first: Place of the first one among the split's shards.
        entries: Two or more, in the order of samples.
    """

    split: str
    first: int
    entries: tuple[ShardEntry, ...]


@dataclass(frozen=True, slots=True)
class MergeTask:
    """The function that Spark maps over the numbers of groups. Picklable.

    Attributes:
        task: That wrote the shards.
        groups: All of the job.
    """

    task: ShardTask
    groups: tuple[Group, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the groups whose numbers are given; yield rows, whose partition is the group."""
        from pyspark import TaskContext  # noqa: PLC0415 - files are converted without Spark

        context = TaskContext.get()
        if context is None:
            raise InternalError("a merge task runs in a Spark task only")
        with told_to_driver():
            for batch in batches:
                for number in batch.column(0).to_numpy():
                    yield from self.rows(int(number), attempt=context.taskAttemptId())

    def rows(self, number: int, *, attempt: int) -> Iterator[pa.RecordBatch]:
        """Merge one group wherever it runs.

        Raises:
            ShardCorruptError: A shard is not what was written.
            InternalError: Samples were lost or doubled.
        """
        group = self.groups[number]
        stem = f"{number:05d}-{self.task.job}{attempt:04x}"
        store = open_store(split_url(self.task.url, group.split), options=self.task.options)
        plan = self.task.plan
        sink = open_sink(store, plan.schema, plan.writing, stem=stem)
        is_whole = False
        try:
            made: list[Entry] = []
            for batch in _batches(store, group.entries, plan.schema):
                made.extend(sink.append(batch))
            made.extend(sink.close())
            _refuse_difference(group, made)
            is_whole = True
        finally:
            if not is_whole:
                sink.abort()
            store.close()
        for sequence, entry in enumerate(made):
            yield row_of(entry, split=group.split, partition=number, sequence=sequence, formats={})


def plan_merges(shards: Mapping[str, Sequence[Entry]], *, shard_bytes: int) -> tuple[Group, ...]:
    """Choose the neighbours to merge: those under half of ``shard_bytes``, up to it together.

    Returns:
        Nothing where that saves fewer than `LEAST_SAVED` shards.
    """
    groups: list[Group] = []
    for split, entries in shards.items():
        run: list[ShardEntry] = []
        size = first = 0
        for place, entry in enumerate(entries):
            raw_bytes = raw_bytes_of(entry)
            is_small = isinstance(entry, ShardEntry) and 2 * raw_bytes < shard_bytes
            is_full = len(run) == MOST_ENTRIES or size + raw_bytes > shard_bytes
            if run and (not is_small or is_full):
                groups.append(Group(split, first, tuple(run)))
                run, size = [], 0
            if is_small and isinstance(entry, ShardEntry):
                first = first if run else place
                run.append(entry)
                size += raw_bytes
        if run:
            groups.append(Group(split, first, tuple(run)))
    groups = [group for group in groups if len(group.entries) > 1]
    saved = sum(len(group.entries) - 1 for group in groups)
    return tuple(groups) if saved >= LEAST_SAVED else ()


def jobs_of(groups: Sequence[Group]) -> list[tuple[Group, ...]]:
    """Divide groups among jobs of Spark, in their order, at most `MOST_ENTRIES` shards each."""
    jobs: list[list[Group]] = []
    count = MOST_ENTRIES
    for group in groups:
        count += len(group.entries)
        if count > MOST_ENTRIES:
            jobs.append([])
            count = len(group.entries)
        jobs[-1].append(group)
    return [tuple(job) for job in jobs]


def put_merged(
    shards: dict[str, list[Entry]],
    groups: Sequence[Group],
    rows: Sequence[Row | Mapping[str, Any]],
) -> None:
    """Put what was merged in the place of its neighbours; the last groups first.

    Raises:
        InternalError: A group came back with more or fewer samples, or not at all.
    """
    made: list[list[Entry]] = [[] for _ in groups]
    for row in sorted(rows, key=lambda row: (row["partition"], row["sequence"])):
        made[row["partition"]].append(entry_of(row))
    for group, entries in zip(groups, made, strict=True):
        _refuse_difference(group, entries)
    for group, entries in reversed(list(zip(groups, made, strict=True))):
        end = group.first + len(group.entries)
        shards[group.split][group.first : end] = entries


def _batches(
    store: Store, entries: Sequence[ShardEntry], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    decoder = BlockDecoder(schema)
    for entry in entries:
        name = stored_name(entry)
        content = memoryview(store.read(name))
        for block, row in enumerate(entry.blocks):
            offset, length, sample_count, raw_bytes, checksum = row.item()
            place = BlockPlace(
                shard=f"{store.url}/{name}",
                block=block,
                offset=offset,
                stored_bytes=length,
                sample_count=sample_count,
                raw_bytes=raw_bytes,
                checksum=checksum,
            )
            yield decode_block(content[offset : offset + length], place, decoder=decoder)


def _refuse_difference(group: Group, made: Sequence[Entry]) -> None:
    wanted = sum(entry.sample_count for entry in group.entries)
    found = sum(entry.sample_count for entry in made)
    if found != wanted:
        raise InternalError(
            f"merging {len(group.entries)} shards from {group.entries[0].name} on made {found} "
            f"samples of {wanted}; nothing was committed: convert again, and report this"
        )
