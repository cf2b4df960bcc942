"""headrace: ``headrace serve`` beside the trainers, a RemoteDataset in each, or a BatchLoader.

Resuming: docs/client.md, "Checkpoints"; appending: docs/datasets.md; mixtures: docs/mixtures.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from exam.entry import Batch, Shards
from exam.job import KIND, ROW_TOKENS, Job, document
from exam.pictures import HEIGHT, WIDTH
from headrace.cli.main import main as command
from headrace.client import BatchLoader, DecodeImage, RemoteDataset
from headrace.storage import ShardWriter, commit_dataset, open_store

_Loader = BatchLoader | RemoteDataset
_COLUMNS: dict[str, pa.DataType] = {"id": pa.int64(), "x": pa.binary()}
_SCHEMA = pa.schema(_COLUMNS)


def write(folder: Path, shards: Shards) -> None:
    """Write a dataset."""
    _commit(folder, shards, "error")


def append(folder: Path, shards: Shards) -> None:
    """Append, which makes a new version."""
    _commit(folder, shards, "append")


def _commit(folder: Path, shards: Shards, mode: Literal["error", "append"]) -> None:
    store = open_store(str(folder))
    entries = []
    for shard in shards:
        with ShardWriter(store, f"{shard[0][0]:08d}.arrow", schema=_SCHEMA) as writer:
            ids, values = zip(*shard, strict=True)
            writer.append(pa.record_batch([pa.array(ids), pa.array(values)], schema=_SCHEMA))
            entries.append(writer.close())
    commit_dataset(store, _SCHEMA, entries, mode=mode)
    store.close()


def write_documents(folder: Path, shards: Shards) -> None:
    """Write documents, and index them as ``headrace index`` does."""
    schema = pa.schema({"tokens": pa.list_(pa.int32())})
    store = open_store(str(folder))
    entries = []
    for shard in shards:
        with ShardWriter(store, f"{shard[0][0]:08d}.arrow", schema=schema) as writer:
            tokens = pa.array([document(each) for each, _ in shard], schema.field(0).type)
            writer.append(pa.record_batch([tokens], schema=schema))
            entries.append(writer.close())
    commit_dataset(store, schema, entries)
    store.close()
    sys.argv = ["headrace", "index", str(folder), "--pack-length", str(ROW_TOKENS)]
    with suppress(SystemExit):
        command()


def serve(folders: Sequence[str], port: int) -> None:
    """Run ``headrace serve``."""
    served = [f"{Path(folder).name}={folder}" for folder in folders]
    options = ["--listen", f"127.0.0.1:{port}", "--log-level", "warning"]
    sys.argv = ["headrace", "serve", *served, *options]
    command()


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open a dataset; the state of any rank is that of all."""
    del epoch  # it is in the state
    return _Stream(_opened(job, [Path(folder).name for folder in job.folders], states))


def open_packed(job: Job, epoch: int, states: Sequence[Any]) -> _Rows:
    """Open rows, ``NAME:LENGTH``."""
    del epoch
    return _Rows(_opened(job, [f"{Path(job.folders[0]).name}:{ROW_TOKENS}"], states))


def _opened(job: Job, names: list[str], states: Sequence[Any]) -> _Loader:
    dataset = RemoteDataset(
        job.address,
        names[0] if len(names) == 1 else [(name, 1 / len(names)) for name in names],
        batch_size=job.batch,
        seed=job.seed,
        shuffle=job.shuffle,
        rank=job.rank,
        world_size=job.world,
        stages=[DecodeImage("x", HEIGHT, WIDTH)] if KIND == "images" else [],
    )
    loader: _Loader = dataset
    if job.workers:
        loader = BatchLoader(dataset, num_workers=job.workers)
    if states:
        loader.load_state_dict(states[0])
    return loader


class _Stream:
    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def epoch(self, number: int) -> Iterator[Batch]:
        del number
        for batch in self._loader:
            if "x" in batch.blobs:
                values: list[Any] = [each or b"" for each in batch.blobs["x"]]
            else:
                values = [*batch["x"]]  # the pixels of images
            yield batch["id"].tolist(), values

    def state(self) -> Any:
        return self._loader.state_dict()


class _Rows(_Stream):
    def epoch(self, number: int) -> Iterator[Batch]:
        del number
        for batch in self._loader:
            tokens = batch["tokens"]
            yield tokens[tokens != 0].tolist(), []
