"""Hugging Face datasets: an IterableDataset split by node, in a StatefulDataLoader.

Resuming: huggingface.co/docs/datasets/use_with_pytorch#checkpoint-and-resume; ranks:
``split_dataset_by_node`` on the same page; mixtures: ``interleave_datasets``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import (  # type: ignore[import-untyped] # no py.typed
    StatefulDataLoader,
)

from exam.entry import Batch, NotOffered, Shards
from exam.job import Job
from exam.pictures import stacked

_SHUFFLED = 100  # samples; the default of 1,000 is nearly half of an epoch here


def write(folder: Path, shards: Shards) -> None:
    """Write a Parquet file a shard."""
    folder.mkdir(exist_ok=True)
    for shard in shards:
        ids, values = zip(*shard, strict=True)
        table = pa.table({"id": pa.array(ids), "x": pa.array(values)})
        pq.write_table(table, folder / f"{shard[0][0]:08d}.parquet")


append = write


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open a dataset and a loader, with the state of the same rank."""
    if states and len(states) != job.world:
        raise NotOffered("a state is of its rank and of its share of the files")
    parts = [_part(job, folder) for folder in job.folders]
    dataset = parts[0] if len(parts) == 1 else interleave_datasets(parts)
    if job.shuffle:
        dataset = dataset.shuffle(seed=job.seed, buffer_size=_SHUFFLED)
    dataset = split_dataset_by_node(dataset, rank=job.rank, world_size=job.world)
    dataset.set_epoch(epoch)
    loader = StatefulDataLoader(
        dataset,
        batch_size=job.batch,
        num_workers=job.workers,
        collate_fn=_columns,
        drop_last=True,
    )
    if states:
        loader.load_state_dict(states[job.rank])
    return _Stream(loader, dataset)


def _part(job: Job, folder: str) -> Any:
    files = job.files(folder, "*.parquet")
    return load_dataset("parquet", data_files=files, split="train", streaming=True)


def _columns(samples: list[dict[str, Any]]) -> Batch:
    return [each["id"] for each in samples], stacked([each["x"] for each in samples])


class _Stream:
    def __init__(self, loader: Any, dataset: Any) -> None:
        self._loader = loader
        self._dataset = dataset

    def epoch(self, number: int) -> Iterator[Batch]:
        self._dataset.set_epoch(number)
        yield from self._loader

    def state(self) -> Any:
        return self._loader.state_dict()
