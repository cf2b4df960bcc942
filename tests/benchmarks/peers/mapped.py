"""PyTorch's DataLoader over arrays mapped into memory, a whole batch gathered at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.peers.loops import LoaderReader
from benchmarks.peers.samples import Column, Items, Samples, load


def write(samples: Samples, folder: Path) -> None:
    """Write nothing: the samples are stored as arrays already."""
    del samples, folder


class _Arrays(Dataset[dict[str, Any]]):
    """Gives batches to a loader that asks for many samples at once."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples.sample_count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._samples.sample(index)

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Any]:
        rows = np.asarray(indices)
        return {name: _gather(column, rows) for name, column in self._samples.columns.items()}


def _gather(column: Column, rows: Any) -> Any:
    if isinstance(column, Items):
        return [column[row] for row in rows.tolist()]
    return torch.from_numpy(np.take(column, rows, axis=0))


def _as_it_is(batch: Any) -> Any:
    return batch


class Reader(LoaderReader):
    """Reads arrays; what is gathered is a batch already."""

    def __init__(self, folder: Path, remote: str) -> None:
        assert not remote
        samples = load(folder / "samples")
        super().__init__(
            _Arrays(samples),
            folder / "samples",
            batch_size=samples.batch_size,
            collate=_as_it_is,
        )
