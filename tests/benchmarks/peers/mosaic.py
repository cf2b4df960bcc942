"""MosaicML Streaming: its own shards, its own loader, everything else at its default."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

from streaming import (  # type: ignore[import-not-found]
    MDSWriter,
    StreamingDataLoader,
    StreamingDataset,
)
from streaming.base.util import clean_stale_shared_memory  # type: ignore[import-not-found]

from benchmarks.peers.loops import StatefulStream, end_workers_soon, stateful_loader
from benchmarks.peers.photo import augmented
from benchmarks.peers.samples import Items, Samples, load


def write(samples: Samples, folder: Path) -> None:
    """Write MDS shards of the default size, not compressed."""
    columns = {}
    for name, column in samples.columns.items():
        if isinstance(column, Items):
            columns[name] = "str" if column.is_text else "bytes"
        elif column.ndim == 1:
            columns[name] = "int"
        else:
            columns[name] = f"ndarray:{column.dtype}:{column.shape[1]}"
    with MDSWriter(out=str(folder / "mosaic"), columns=columns) as writer:
        for sample in samples.all():
            writer.write(sample)


class Reader:
    """Reads local shards, or those of a store into an empty local folder."""

    def __init__(self, folder: Path, remote: str) -> None:
        end_workers_soon()
        self.files = folder / "mosaic"
        self._remote = f"{remote}/mosaic" if remote else None
        self._local = folder / ("mosaic-cache" if remote else "mosaic")
        samples = load(folder / "samples")
        self._batch_size = samples.batch_size
        self._dataset = _Photos if samples.kind == "photos" else StreamingDataset

    def prepare(self) -> None:
        """Forget what an earlier stream has left, and what it has downloaded."""
        clean_stale_shared_memory()
        if self._remote is not None:
            shutil.rmtree(self._local, ignore_errors=True)

    def open(self, workers: int, state: Any) -> _Stream:
        """Open a dataset and its loader."""
        dataset = self._dataset(
            remote=self._remote,
            local=str(self._local),
            shuffle=True,
            shuffle_seed=7,
            batch_size=self._batch_size,
        )
        loader = stateful_loader(
            StreamingDataLoader,
            dataset,
            batch_size=self._batch_size,
            workers=workers,
            state=state,
        )
        return _Stream(loader)

    def close(self) -> None:
        """End nothing: all is in this process."""


class _Photos(StreamingDataset):  # type: ignore[misc] # untyped
    """Transforms each sample in a worker, as its documentation has it."""

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"image": augmented(super().__getitem__(at)["image"])}


class _Stream(StatefulStream):
    def close(self) -> None:
        super().close()
        # Workers that still end would find what they share gone, and leave it half made.
        gc.collect()
        clean_stale_shared_memory()
