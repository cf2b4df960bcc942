"""LitData: its own chunks, its own loader; tokens by the loader that it has for them.

Bytes come as slices of mapped files, which PyTorch's default collation would take apart into a
tensor for each byte. They stay what they are here, or become bytes where they leave a worker.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from litdata import (  # type: ignore[import-not-found]
    StreamingDataLoader,
    StreamingDataset,
    TokensLoader,
)
from litdata.streaming import downloader  # type: ignore[import-not-found]
from litdata.streaming.writer import BinaryWriter  # type: ignore[import-not-found]
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from benchmarks.peers.loops import StatefulStream, end_workers_soon, stateful_loader
from benchmarks.peers.photo import augmented
from benchmarks.peers.reader import CACHE_BYTES, REPEATED, link_copies
from benchmarks.peers.samples import Samples, load

_CHUNK_BYTES = 64 << 20


def write(samples: Samples, folder: Path) -> None:
    """Write chunks of 64 MiB, not compressed."""
    place = folder / "lit"
    place.mkdir()
    is_tokens = samples.kind == "tokens"
    writer = BinaryWriter(
        str(place),
        chunk_bytes=_CHUNK_BYTES,
        item_loader=TokensLoader() if is_tokens else None,
    )
    for index, sample in enumerate(samples.all()):
        writer[index] = torch.from_numpy(sample["tokens"].copy()) if is_tokens else sample
    writer.done()
    writer.merge()


def repeat(samples: Samples, folder: Path, times: int) -> None:
    """Write an index that names each chunk several times."""
    del samples
    place = folder / REPEATED / "lit"
    place.mkdir(parents=True)
    index = json.loads((folder / "lit" / "index.json").read_text())
    chunks = {chunk["filename"]: chunk for chunk in index["chunks"]}
    files = {name: folder / "lit" / name for name in chunks}
    index["chunks"] = [
        {**chunks[name], "filename": copy} for name, copy in link_copies(files, place, times)
    ]
    (place / "index.json").write_text(json.dumps(index))


def keep(batch: list[memoryview], **_: Any) -> list[memoryview] | list[bytes]:
    """Leave samples as they are: PyTorch's collation would make a tensor of each of their bytes."""
    return batch if get_worker_info() is None else [bytes(each) for each in batch]


class Reader:
    """Reads local chunks, or those of a store into an empty local folder."""

    def __init__(self, folder: Path, remote: str) -> None:
        end_workers_soon()
        default_collate_fn_map[memoryview] = keep
        self.files = folder / "lit"
        self._samples = load(folder / "samples")
        self._folder = folder
        self._place = f"{remote}/lit" if remote else str(folder / "lit")
        self._options: dict[str, Any] = {}
        if remote:
            # Its client refuses plain HTTP, and no option of a dataset reaches this setting.
            downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
            self._options = {
                "storage_options": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
                "max_cache_size": CACHE_BYTES,
            }

    def prepare(self) -> None:
        """Forget what an earlier stream has downloaded."""
        if self._options:
            shutil.rmtree(self._options.pop("cache_dir", ""), ignore_errors=True)
            # Workers of an earlier stream may still write into its folder.
            self._options["cache_dir"] = tempfile.mkdtemp(prefix="lit-cache-", dir=self._folder)

    def open(self, workers: int, state: Any) -> _Stream:
        """Open a dataset and its loader."""
        tokens = self._samples.columns.get("tokens")
        loader_of_items = None if tokens is None else TokensLoader(block_size=tokens.shape[1])  # type: ignore[union-attr] # an array
        kind = _Photos if self._samples.kind == "photos" else StreamingDataset
        dataset = kind(
            self._place, item_loader=loader_of_items, shuffle=True, seed=7, **self._options
        )
        loader = stateful_loader(
            StreamingDataLoader,
            dataset,
            batch_size=self._samples.batch_size,
            workers=workers,
            state=state,
        )
        return _Stream(loader)

    def close(self) -> None:
        """End nothing: all is in this process."""


class _Photos(StreamingDataset):  # type: ignore[misc] # untyped
    """Transforms each sample in a worker, as its documentation has it."""

    def __getitem__(self, at: Any) -> dict[str, Any]:
        return {"image": augmented(super().__getitem__(at)["image"])}


class _Stream(StatefulStream):
    def epoch(self) -> Iterator[Mapping[str, Any]]:
        for batch in super().epoch():
            yield batch if isinstance(batch, dict) else {"tokens": batch}
