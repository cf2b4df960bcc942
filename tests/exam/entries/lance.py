"""LanceDB: a StreamingDataset in its StreamingDataLoader, one split a sample of a global batch.

Resuming: docs.lancedb.com/training/resuming; ranks and workers: .../training/distributed-training.
"For an exact resume, also use the same table snapshot": the state has the version of the table.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
from lancedb.streaming import StreamingDataLoader, StreamingDataset

from exam.entry import Batch, NotOffered, Shards
from exam.job import GLOBAL_BATCH, ROW_TOKENS, Job, document
from exam.pictures import stacked

_TABLE = "samples"
_END = 10_000_000  # the token that ends a document
_BLOCKS = 27 * GLOBAL_BATCH  # of an epoch: enough for all tokens
_PACKED = {
    "columns": ["tokens"],
    "pack_sequences": ROW_TOKENS,
    "eos_id": _END,
    "pad_id": 0,
    "blocks_per_epoch": _BLOCKS,
}


def write(folder: Path, shards: Shards) -> None:
    """Write a fragment a shard."""
    first, *others = map(_table_of, shards)
    table = lancedb.connect(str(folder)).create_table(_TABLE, first)
    for each in others:
        table.add(each)


def append(folder: Path, shards: Shards) -> None:
    """Add more of them."""
    table = lancedb.connect(str(folder)).open_table(_TABLE)
    for each in map(_table_of, shards):
        table.add(each)


def write_documents(folder: Path, shards: Shards) -> None:
    """Write a fragment of documents a shard."""
    schema = pa.schema({"tokens": pa.list_(pa.int64())})
    tables = [pa.table([[document(each) for each, _ in shard]], schema=schema) for shard in shards]
    table = lancedb.connect(str(folder)).create_table(_TABLE, tables[0])
    for each in tables[1:]:
        table.add(each)


def _table_of(shard: list[tuple[int, bytes]]) -> pa.Table:
    ids, values = zip(*shard, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array(values, pa.binary())})


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open the table, at the version of the states, with all ranks' states merged."""
    if len(job.folders) > 1:
        raise NotOffered("a StreamingDataset reads one table")
    multiprocessing.set_forkserver_preload(["torch", "pyarrow"])
    options = {"allow_http": "true"} if job.store else None
    table = lancedb.connect(job.folders[0], storage_options=options).open_table(_TABLE)
    if states:
        table.checkout(states[0]["version"])
    stream = _Stream(job, table)
    stream.open(epoch)
    if states:
        merged = StreamingDataset.merge_state_dicts([each["dataset"] for each in states])
        stream.dataset.load_state_dict(merged)
    return stream


def open_packed(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open the same table, packed into rows; padding and ends of documents are left out."""
    return open_stream(job, epoch, states)


class _Stream:
    def __init__(self, job: Job, table: Any) -> None:
        self._job = job
        self._table = table
        self._epoch = -1
        self.dataset: Any = None

    def open(self, epoch: int) -> None:
        job = self._job
        self._epoch = epoch
        self.dataset = StreamingDataset(
            self._table,
            num_splits=GLOBAL_BATCH,
            shuffle=job.shuffle,
            shuffle_seed=job.seed,
            epoch=epoch,
            rank=job.rank,
            world_size=job.world,
            **_PACKED if job.is_packed else {},
        )

    def epoch(self, number: int) -> Iterator[Batch]:
        if number != self._epoch:
            self.open(number)
        job, workers = self._job, self._job.workers
        options = {"multiprocessing_context": "forkserver"} if workers else {}
        parts = max(workers, 1)
        loader = StreamingDataLoader(
            self.dataset,
            batch_size=job.batch // parts,
            num_workers=workers,
            collate_fn=tokens if job.is_packed else columns,
            **options,
        )
        # A step is a sample of each split: a batch of each worker, which has its own splits.
        for first in (batches := iter(loader)):
            step = [first, *itertools.islice(batches, parts - 1)]
            yield [each for ids, _ in step for each in ids], [x for _, xs in step for x in xs]

    def state(self) -> Any:
        return {"dataset": self.dataset.state_dict(), "version": self._table.version}


def columns(samples: list[dict[str, Any]]) -> Batch:
    """Return samples as a batch."""
    return [each["id"] for each in samples], stacked([each["x"] for each in samples])


def tokens(rows: list[dict[str, Any]]) -> Batch:
    """Return the tokens of documents in packed rows."""
    found = [token for row in rows for token in row["input_ids"].tolist()]
    return [token for token in found if token not in (0, _END)], []
