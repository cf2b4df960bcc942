"""LitData: a StreamingDataset in a StreamingDataLoader, ranks joined by torch.distributed.

Resuming: github.com/Lightning-AI/litData#pause-resume; appending: ``mode="append"`` of `optimize`;
mixtures: `CombinedStreamingDataset`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from litdata import (  # type: ignore[import-not-found]
    CombinedStreamingDataset,
    StreamingDataLoader,
    StreamingDataset,
    optimize,
)

from exam.entry import Batch, Shards
from exam.job import SHARD_SAMPLES, Job
from exam.pictures import stacked


def write(folder: Path, shards: Shards) -> None:
    """Write chunks of as many samples."""
    _optimize(folder, shards, mode=None)


def append(folder: Path, shards: Shards) -> None:
    """Write more of them."""
    _optimize(folder, shards, mode="append")


def _optimize(folder: Path, shards: Shards, *, mode: str | None) -> None:
    samples = {sample_id: value for shard in shards for sample_id, value in shard}
    optimize(
        fn=functools.partial(_sample, samples),
        inputs=[*samples],
        output_dir=str(folder),
        chunk_size=SHARD_SAMPLES,
        num_workers=1,
        mode=mode,
        verbose=False,
    )


def _sample(samples: dict[int, bytes], sample_id: int) -> dict[str, Any]:
    return {"id": sample_id, "x": samples[sample_id]}


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open a dataset and its loader, with rank 0's state on every rank."""
    del epoch  # it is in the state
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    parts = [
        StreamingDataset(folder, shuffle=job.shuffle, drop_last=True, seed=job.seed)
        for folder in job.folders
    ]
    dataset = parts[0]
    if len(parts) > 1:
        weights = [1 / len(parts)] * len(parts)
        dataset = CombinedStreamingDataset(
            parts, seed=job.seed, weights=weights, iterate_over_all=False
        )
    loader = StreamingDataLoader(
        dataset, batch_size=job.batch, num_workers=job.workers, collate_fn=_columns
    )
    if states:
        loader.load_state_dict(states[0])
    return _Stream(loader)


def _columns(samples: list[dict[str, Any]]) -> Batch:
    return [each["id"] for each in samples], stacked([each["x"] for each in samples])


class _Stream:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def epoch(self, number: int) -> Iterator[Batch]:
        del number
        yield from self._loader

    def state(self) -> Any:
        return self._loader.state_dict()
