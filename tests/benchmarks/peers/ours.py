"""headrace: a `headrace serve` on the same machine, and a RemoteDataset in the training process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from benchmarks.peers.arrow import table_of
from benchmarks.peers.photo import SIDE
from benchmarks.peers.reader import CACHE_BYTES, REPEATED, link_copies
from benchmarks.peers.samples import Samples, load
from headrace.bench.children import serving
from headrace.client import (
    DecodeImage,
    Order,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RemoteDataset,
)
from headrace.storage import (
    SHARD_FOLDER,
    ShardEntry,
    ShardWriter,
    Store,
    commit_dataset,
    open_store,
)

_NAME = "peers"
_SHARD_BYTES = 16 << 20
_AUGMENTED = DecodeImage("image", transforms=[RandomResizedCrop(SIDE), RandomHorizontalFlip()])


def write(samples: Samples, folder: Path) -> None:
    """Write Arrow shards."""
    table = table_of(samples)
    with closing(open_store(str(folder / "ours"))) as store:
        commit_dataset(store, table.schema, _shards(samples, table, store))


def repeat(samples: Samples, folder: Path, times: int) -> None:
    """Write them for a store, each shard under several names."""
    place, table = folder / REPEATED / "ours", table_of(samples)
    with closing(open_store(str(place))) as store:
        shards = {entry.name: entry for entry in _shards(samples, table, store)}
        files = {name: place / SHARD_FOLDER / name for name in shards}
        copies = [
            dataclasses.replace(shards[name], name=copy)
            for name, copy in link_copies(files, place / SHARD_FOLDER, times)
        ]
        commit_dataset(store, table.schema, copies)


def _shards(samples: Samples, table: pa.Table, store: Store) -> list[ShardEntry]:
    rows = max(samples.batch_size, _SHARD_BYTES * samples.sample_count // table.nbytes)
    shards = []
    for number, start in enumerate(range(0, samples.sample_count, rows)):
        with ShardWriter(store, f"{number:05d}.arrow", schema=table.schema) as writer:
            for batch in table.slice(start, rows).to_batches():
                writer.append(batch)
            shards.append(writer.close())
    return shards


class Reader:
    """Reads through a server; with a store behind it, a new server for each opening."""

    def __init__(self, folder: Path, remote: str) -> None:
        self.files = folder / "ours"
        self._url = f"{remote}/ours" if remote else str(self.files)
        self._is_remote = bool(remote)
        samples = load(folder / "samples")
        self._batch_size = samples.batch_size
        self._steps = [_AUGMENTED] if samples.kind == "photos" else []
        # As docs/cache-size.md has it: what is shuffled together takes half of a cache.
        self._order = Order(shuffle_bytes=CACHE_BYTES // 2) if remote else Order()
        self._limits = (f"--cache-bytes={CACHE_BYTES}",) if remote else ()
        self._server = ExitStack()
        self._address = ""

    def prepare(self) -> None:
        """Start a server: the first one, or one with an empty cache."""
        if self._address and not self._is_remote:
            return
        self.close()
        self._server = ExitStack()
        serve = serving({_NAME: self._url}, "--log-level", "error", *self._limits)
        self._address = self._server.enter_context(serve).address

    def open(self, workers: int, state: Any) -> Stream:
        """Open a dataset; it needs no workers."""
        assert not workers
        dataset = RemoteDataset(
            self._address,
            _NAME,
            batch_size=self._batch_size,
            seed=7,
            order=self._order,
            stages=self._steps,
        )
        if state is not None:
            dataset.load_state_dict(state)
        return Stream(dataset)

    def close(self) -> None:
        """End the server."""
        self._server.close()


class Stream:
    """One dataset, read again and again.

    Attributes:
        dataset: It.
    """

    def __init__(self, dataset: RemoteDataset) -> None:
        self.dataset = dataset

    def epoch(self) -> Iterator[Mapping[str, Any]]:
        """Yield the batches of the rest of an epoch, with a `str` or `bytes` for each string."""
        for batch in self.dataset:
            yield {
                name: value if isinstance(value, torch.Tensor) else list(value)
                for name, value in batch.items()
            }

    def state(self) -> Any:
        """Return where it is."""
        return self.dataset.state_dict()

    def close(self) -> None:
        """End the stream."""
        self.dataset.close()
