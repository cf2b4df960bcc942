"""WebDataset: tar files, split by node and by worker, shuffled by shard and in a buffer.

Reading: webdataset.github.io/webdataset/gettingstarted; there is no state to resume from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import webdataset as wds

from exam.entry import Batch, NotOffered, Shards
from exam.job import SHARDS, Job
from exam.pictures import decoded

_SHUFFLED = 100


def write(folder: Path, shards: Shards) -> None:
    """Write a tar file a shard."""
    folder.mkdir()
    for shard in shards:
        with wds.TarWriter(str(folder / f"{shard[0][0]:08d}.tar")) as writer:
            for sample_id, value in shard:
                about = json.dumps(sample_id).encode()
                writer.write({"__key__": f"{sample_id:08d}", "id": about, "bin": value})


def append(folder: Path, shards: Shards) -> None:
    """Say that there is none."""
    del folder, shards
    raise NotOffered("a run that has begun cannot be resumed")


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open a pipeline."""
    del epoch, states
    parts = [_part(job, folder) for folder in job.folders]
    dataset = parts[0] if len(parts) == 1 else wds.RandomMix(parts)
    return _Stream(wds.WebLoader(dataset, batch_size=None, num_workers=job.workers))


def _part(job: Job, folder: str) -> Any:
    paths = job.files(folder, "*.tar")
    dataset = wds.WebDataset(
        paths,
        shardshuffle=SHARDS if job.shuffle else False,
        nodesplitter=wds.split_by_node,
        workersplitter=wds.split_by_worker,
        detshuffle=True,
        seed=job.seed,
    )
    if job.shuffle:
        dataset = dataset.shuffle(_SHUFFLED, seed=job.seed)
    samples = dataset.to_tuple("id", "bin").map_tuple(bytes, decoded)
    return samples.batched(job.batch, partial=False)


class _Stream:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def epoch(self, number: int) -> Iterator[Batch]:
        del number
        for ids, values in self._loader:
            yield [json.loads(each) for each in ids], values

    def state(self) -> Any:
        return None
