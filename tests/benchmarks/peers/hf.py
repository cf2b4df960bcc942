"""Hugging Face datasets: Parquet files as an IterableDataset, in torchdata's StatefulDataLoader.

huggingface.co/docs/datasets/use_with_pytorch: ``with_format("torch")``, shuffled by files and by a
buffer of the default size. Bytes and texts are read without a format: that one puts them through
arrays of NumPy, which take zero bytes at the end of a value for padding and drop them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from datasets import load_dataset
from torch.utils.data import default_collate
from torchdata.stateful_dataloader import (  # type: ignore[import-untyped] # no py.typed
    StatefulDataLoader,
)

from benchmarks.peers.arrow import table_of
from benchmarks.peers.loops import StatefulStream, end_workers_soon, stateful_loader
from benchmarks.peers.samples import Items, Samples, load

_FILES = 8
_BUFFER = 1000
_GROUP_ROWS = 1024


def write(samples: Samples, folder: Path) -> None:
    """Write eight files, so that workers have some each."""
    table = table_of(samples)
    rows = -(-samples.sample_count // _FILES)
    (folder / "hf").mkdir()
    for start in range(0, samples.sample_count, rows):
        path = folder / "hf" / f"{start:09d}.parquet"
        pq.write_table(table.slice(start, rows), path, row_group_size=_GROUP_ROWS)


def collated(samples: list[dict[str, Any]]) -> Any:
    """Return a batch; tokens as they were written, since the format makes int64 of all integers."""
    batch = default_collate(samples)
    if "tokens" in batch:
        batch["tokens"] = batch["tokens"].to(torch.int32)
    return batch


class Reader:
    """Reads local files."""

    def __init__(self, folder: Path, remote: str) -> None:
        assert not remote
        end_workers_soon()
        self.files = folder / "hf"
        samples = load(folder / "samples")
        self._batch_size = samples.batch_size
        are_numbers = not any(isinstance(each, Items) for each in samples.columns.values())
        self._format = "torch" if are_numbers else None

    def prepare(self) -> None:
        """Nothing is left of an earlier stream."""

    def open(self, workers: int, state: Any) -> _Stream:
        """Open a dataset and its loader."""
        files = sorted(str(path) for path in self.files.glob("*.parquet"))
        dataset = load_dataset("parquet", data_files=files, split="train", streaming=True)
        dataset = dataset.shuffle(seed=7, buffer_size=_BUFFER).with_format(self._format)

        def loader(*given: Any, **options: Any) -> Any:
            return StatefulDataLoader(*given, collate_fn=collated, **options)

        made = stateful_loader(
            loader, dataset, batch_size=self._batch_size, workers=workers, state=state
        )
        return _Stream(made, dataset, has_state=not workers)

    def close(self) -> None:
        """End nothing: all is in this process."""


class _Stream(StatefulStream):
    def __init__(self, loader: Any, dataset: Any, *, has_state: bool) -> None:
        super().__init__(loader)
        self._has_state = has_state
        self._dataset = dataset
        self._epoch = -1

    def epoch(self) -> Iterator[Mapping[str, Any]]:
        """Yield an epoch in an order of its own."""
        self._epoch += 1
        self._dataset.set_epoch(self._epoch)
        yield from super().epoch()

    def state(self) -> Any:
        """Return where the loader is.

        With workers a state that was taken after the first epoch cannot be loaded: the dataset
        raises an IndexError where a worker had more files in the buffer than it starts with.
        """
        return super().state() if self._has_state else None
