"""MosaicML Streaming: its own shards, its own loader, everything else at its default."""

from __future__ import annotations

import gc
import json
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
from benchmarks.peers.reader import CACHE_BYTES, REPEATED, link_copies
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


def repeat(samples: Samples, folder: Path, times: int) -> None:
    """Write an index that names each shard several times."""
    del samples
    place = folder / REPEATED / "mosaic"
    place.mkdir(parents=True)
    index = json.loads((folder / "mosaic" / "index.json").read_text())
    shards = {shard["raw_data"]["basename"]: shard for shard in index["shards"]}
    files = {name: folder / "mosaic" / name for name in shards}
    index["shards"] = [
        {**shards[name], "raw_data": {**shards[name]["raw_data"], "basename": copy}}
        for name, copy in link_copies(files, place, times)
    ]
    (place / "index.json").write_text(json.dumps(index))


class Reader:
    """Reads local shards, or those of a store into an empty local folder."""

    def __init__(self, folder: Path, remote: str) -> None:
        end_workers_soon()
        self.files = folder / "mosaic"
        self._remote = f"{remote}/mosaic" if remote else None
        self._local = folder / ("mosaic-cache" if remote else "mosaic")
        samples = load(folder / "samples")
        self._limits: dict[str, int] = {}
        if remote:
            # Its defaults shuffle 2 GiB of images as a whole, so each batch would need all shards,
            # of which the cache holds a fifth. It shuffles as much as headrace does here.
            self._limits = {
                "cache_limit": CACHE_BYTES,
                "num_canonical_nodes": 1,
                "shuffle_block_size": CACHE_BYTES // 2 // len(samples.raw(0)),
            }
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
            **self._limits,
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
