"""MosaicML Streaming: a StreamingDataset in a StreamingDataLoader.

Resuming: docs.mosaicml.com/projects/streaming/en/latest/distributed_training/fast_resumption.html
Ranks: .../distributed_training/elastic_determinism.html
Mixtures: .../dataset_configuration/mixing_data_sources.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from streaming import (  # type: ignore[import-not-found]
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from streaming.base.util import clean_stale_shared_memory  # type: ignore[import-not-found]

from exam.entry import Batch, NotOffered, Shards
from exam.job import PAYLOAD_BYTES, SHARD_SAMPLES, Job
from exam.pictures import decoded

_ROW_BYTES = PAYLOAD_BYTES + 8 + 4 + 4  # the id, the length and the offset of a sample
_HEAD_BYTES = 600


def write(folder: Path, shards: Shards) -> None:
    """Write MDS shards of about as many samples; every shard has a checksum."""
    limit = SHARD_SAMPLES * _ROW_BYTES + _HEAD_BYTES
    with MDSWriter(
        out=str(folder), columns={"id": "int", "x": "bytes"}, hashes=["xxh64"], size_limit=limit
    ) as writer:
        for shard in shards:
            for sample_id, value in shard:
                writer.write({"id": sample_id, "x": value})


def append(folder: Path, shards: Shards) -> None:
    """Say that there is none."""
    del folder, shards
    raise NotOffered("MDSWriter writes to an empty folder; shards are immutable")


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open a dataset and its loader, with rank 0's state on every rank."""
    del epoch  # it is in the state
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    clean_stale_shared_memory()  # what killed ranks have left
    part = 1 / len(job.folders) if len(job.folders) > 1 else None
    cache = Path(job.states) / "cache"
    streams = [
        Stream(remote=folder, local=str(cache / Path(folder).name), proportion=part)
        for folder in job.folders
    ]
    dataset = _Dataset(
        streams=streams,
        shuffle=job.shuffle,
        shuffle_seed=job.seed,
        batch_size=job.batch,
        validate_hash="xxh64",
    )
    loader = StreamingDataLoader(dataset, batch_size=job.batch, num_workers=job.workers)
    if states:
        loader.load_state_dict(states[0])
    return _Stream(loader)


class _Dataset(StreamingDataset):  # type: ignore[misc] # untyped
    """Decodes images in a worker, as its documentation has it."""

    def __getitem__(self, at: Any) -> dict[str, Any]:
        found = super().__getitem__(at)
        return {"id": found["id"], "x": decoded(found["x"])}


class _Stream:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def epoch(self, number: int) -> Iterator[Batch]:
        del number
        for batch in self._loader:
            yield batch["id"].tolist(), batch["x"]

    def state(self) -> Any:
        return self._loader.state_dict()
