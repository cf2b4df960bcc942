"""PyTorch's DataLoader over a file a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.peers.loops import LoaderReader
from benchmarks.peers.photo import augmented
from benchmarks.peers.samples import Samples, load

_A_FOLDER = 10_000  # as those who store samples as files do, so that folders stay readable


def write(samples: Samples, folder: Path) -> None:
    """Write each sample as one file of its raw bytes."""
    for index in range(samples.sample_count):
        path = _path(folder / "files", index)
        if index % _A_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(samples.raw(index))


def _path(folder: Path, index: int) -> Path:
    return folder / str(index // _A_FOLDER) / str(index)


class _Files(Dataset[dict[str, Any]]):
    def __init__(self, folder: Path, samples: Samples) -> None:
        self._folder = str(folder)
        self._kind, self._count = samples.kind, samples.sample_count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        with open(f"{self._folder}/{index // _A_FOLDER}/{index}", "rb", buffering=0) as file:  # noqa: PTH123 - four times as quick
            raw = file.read()
        if self._kind == "images":
            return {"image": raw}
        if self._kind == "photos":
            return {"image": torch.from_numpy(augmented(raw))}
        if self._kind == "texts":
            return {"text": raw.decode()}
        own = bytearray(raw)
        if self._kind == "tokens":
            return {"tokens": torch.frombuffer(own, dtype=torch.int32)}
        label = torch.frombuffer(own, dtype=torch.int64, count=1)[0]
        return {"label": label, "x": torch.frombuffer(own, dtype=torch.float32, offset=8)}


class Reader(LoaderReader):
    """Reads files, with the default collation."""

    def __init__(self, folder: Path, remote: str) -> None:
        assert not remote
        samples = load(folder / "samples")
        files = folder / "files"
        super().__init__(_Files(files, samples), files, batch_size=samples.batch_size, collate=None)
