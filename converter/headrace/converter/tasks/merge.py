"""Merge neighbouring small shards of a job before its commit, without changing their samples.

Contract:

1. Success: one shard replaces a run of neighbours and has their samples in the same order. No
   manifest names the neighbours, and they are removed when the job ends.
2. Names contain the job and the attempt, as in `ShardTask`. So shards that
   a retried, speculative or killed attempt leaves are in no manifest, and are removed too.
3. A merged shard with more or fewer samples than its neighbours is an error; nothing is committed.
4. Blocks are cut again, so those of a merged shard are as even as those of any other shard.
5. Memory: as for `stream_blocks` and `ShardSeries`.

A run of neighbours is merged if at most `MOST_LEFT` of its shards remain. So a byte is written at
most twice, and only if that saves many shards. A small shard among large ones stays: a partition of
15.5 shards keeps 16. `headrace compact` merges those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.converter.tasks.failure import packed_for_driver
from headrace.converter.tasks.shard_task import ShardTask, entry_of, row_of, split_url
from headrace.converter.tasks.sinks import Entry, open_sink, stored_name
from headrace.errors import InternalError
from headrace.storage import BlockPlace, ShardEntry, open_store, stream_blocks

if TYPE_CHECKING:
    from pyspark.sql import Row

LEAST_SAVED = 8
"""Shards that merging must save in all; fewer are not worth another stage of the job."""

MOST_LEFT = 2 / 3
"""The share of the shards of a run that may remain, rounded up; otherwise it is not merged."""

MOST_SHARDS = 16
"""Most shards that a run becomes, so that many tasks share the work; 1 GiB for 64 MiB shards."""

MOST_ENTRIES = 8192
"""Most shards merged by one Spark job, which sends their block tables to its tasks."""

_FULL = 7 / 8  # of a shard: full enough for a run to end


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Neighbouring shards of one split that become one. Picklable.

    Attributes:
        split: The split that the shards belong to.
        first: Index of the first one among the split's shards.
        entries: Two or more shards, in the order of samples.
    """

    split: str
    first: int
    entries: tuple[ShardEntry, ...]


@dataclass(frozen=True, slots=True)
class MergeTask:
    """The function that Spark maps over the numbers of groups. Picklable.

    Attributes:
        task: The task that wrote the shards.
        groups: All groups of the job.
    """

    task: ShardTask
    groups: tuple[ShardGroup, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the groups with the given numbers; yield rows that have them as partitions."""
        from pyspark import TaskContext  # noqa: PLC0415 - files are converted without Spark

        context = TaskContext.get()
        if context is None:
            raise InternalError("a merge task only runs inside a Spark task")
        with packed_for_driver():
            for batch in batches:
                for number in batch.column(0).to_numpy():
                    yield from self.rows(int(number), attempt=context.taskAttemptId())

    def rows(self, number: int, *, attempt: int) -> Iterator[pa.RecordBatch]:
        """Merge one group, inside Spark or outside.

        Raises:
            ShardCorruptError: A shard differs from what was written.
            InternalError: Samples were lost or duplicated.
        """
        group = self.groups[number]
        stem = f"{number:05d}-{self.task.job}{attempt:04x}"
        store = open_store(split_url(self.task.url, group.split), options=self.task.options)
        plan = self.task.plan
        sink = open_sink(store, plan.schema, plan.writing, stem=stem)
        is_whole = False
        try:
            made: list[Entry] = []
            for batch in stream_blocks(store, _places(group.entries), plan.schema):
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


def plan_merges(
    shards: Mapping[str, Sequence[Entry]], *, shard_bytes: int, least_saved: int = LEAST_SAVED
) -> tuple[ShardGroup, ...]:
    """Choose the neighbours to merge.

    Returns:
        Groups, split by split, in the order of samples; none if merging all of them would save
        fewer than ``least_saved`` shards.
    """
    groups: list[ShardGroup] = []
    saved = 0
    for split, entries in shards.items():
        own = [entry for entry in entries if isinstance(entry, ShardEntry)]
        if len(own) < len(entries):
            continue  # mds: its shards are never merged
        sizes = [entry.raw_bytes for entry in own]
        first = 0
        while first < len(own):
            count = _run_length(sizes, first, shard_bytes)
            left = _shards_left(sum(sizes[first : first + count]), shard_bytes)
            if left > MOST_LEFT * count:
                first += 1
                continue
            groups.append(ShardGroup(split, first, tuple(own[first : first + count])))
            saved += count - left
            first += count
    return tuple(groups) if saved >= least_saved else ()


def _run_length(sizes: Sequence[int], first: int, shard_bytes: int) -> int:
    """Return how many shards to merge from index ``first`` on; 0 for none.

    A run starts with a shard that has room, and ends where the merged shards would be full, or at
    the latest with what `MOST_SHARDS` can hold.
    """
    if sizes[first] >= _FULL * shard_bytes:
        return 1
    total = 0
    most = min(len(sizes) - first, MOST_ENTRIES)
    for count in range(1, most + 1):
        total += sizes[first + count - 1]
        if total > MOST_SHARDS * shard_bytes:
            return max(1, count - 1)
        left = _shards_left(total, shard_bytes)
        is_full = total >= (left - 1 + _FULL) * shard_bytes
        if is_full and left <= MOST_LEFT * count:
            return count
    return most


def _shards_left(total_bytes: int, shard_bytes: int) -> int:
    return max(1, -(-total_bytes // shard_bytes))


def jobs_of(groups: Sequence[ShardGroup]) -> list[tuple[ShardGroup, ...]]:
    """Divide groups among Spark jobs, in order, with at most `MOST_ENTRIES` shards each."""
    jobs: list[list[ShardGroup]] = []
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
    groups: Sequence[ShardGroup],
    rows: Sequence[Row | Mapping[str, Any]],
) -> None:
    """Replace neighbours by the shards they were merged into; the last groups first.

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


def _places(entries: Sequence[ShardEntry]) -> Iterator[BlockPlace]:
    for entry in entries:
        for block, row in enumerate(entry.blocks):
            yield BlockPlace.of_row(row, shard=stored_name(entry), block=block)


def _refuse_difference(group: ShardGroup, made: Sequence[Entry]) -> None:
    wanted = sum(entry.sample_count for entry in group.entries)
    found = sum(entry.sample_count for entry in made)
    if found != wanted:
        raise InternalError(
            f"merging {len(group.entries)} shards from {group.entries[0].name} on wrote {found} of "
            f"{wanted} samples; nothing was committed: convert again, and please report this"
        )
