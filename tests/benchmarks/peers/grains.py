"""Grain: ArrayRecord files behind a MapDataset that is shuffled, repeated and batched.

google-grain.readthedocs.io: "Reading data", "DataLoader or Dataset"; workers by ``mp_prefetch``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import (  # type: ignore[import-not-found]
    ArrayRecordWriter,
)

from benchmarks.peers.samples import Samples, load

_FILE_BYTES = 16 << 20


def write(samples: Samples, folder: Path) -> None:
    """Write files of 16 MiB, one record a group, as its pages say for random access."""
    place = folder / "grains"
    place.mkdir()
    rows = max(1, _FILE_BYTES // max(1, len(samples.raw(0))))
    for start in range(0, samples.sample_count, rows):
        writer = ArrayRecordWriter(str(place / f"{start:09d}.array_record"), "group_size:1")
        for row in range(start, min(start + rows, samples.sample_count)):
            writer.write(samples.raw(row))
        writer.close()


def parsed(kind: str, raw: bytes) -> dict[str, Any]:
    """Return a sample of its bytes."""
    if kind == "images":
        return {"image": raw}
    if kind == "texts":
        return {"text": raw.decode()}
    if kind == "tokens":
        return {"tokens": np.frombuffer(raw, np.int32)}
    return {
        "label": np.frombuffer(raw, np.int64, count=1)[0],
        "x": np.frombuffer(raw, np.float32, offset=8),
    }


def joined(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a batch: arrays on top of each other, bytes and texts as they are."""
    found: dict[str, Any] = {}
    for name, first in samples[0].items():
        values = [each[name] for each in samples]
        found[name] = values if isinstance(first, bytes | str) else np.stack(values)
    return found


class Reader:
    """Reads local files."""

    def __init__(self, folder: Path, remote: str) -> None:
        assert not remote
        self.files = folder / "grains"
        self._samples = load(folder / "samples")

    def prepare(self) -> None:
        """Nothing is left of an earlier stream."""

    def open(self, workers: int, state: Any) -> _Stream:
        """Open an iterator over all epochs."""
        paths = sorted(str(path) for path in self.files.glob("*.array_record"))
        samples = self._samples
        dataset = (
            grain.MapDataset.source(grain.sources.ArrayRecordDataSource(paths))
            .seed(7)
            .shuffle()
            .repeat()
            .map(functools.partial(parsed, samples.kind))
            .batch(samples.batch_size, batch_fn=joined)
            .to_iter_dataset()
        )
        if workers:
            dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        iterator = iter(dataset)
        if state is not None:
            iterator.set_state(state)
        return _Stream(iterator, samples.sample_count // samples.batch_size)

    def close(self) -> None:
        """End nothing: all is in this process."""


class _Stream:
    def __init__(self, iterator: Any, batches: int) -> None:
        self._iterator = iterator
        self._batches = batches

    def epoch(self) -> Iterator[Mapping[str, Any]]:
        """Yield as many batches as an epoch has."""
        for _ in range(self._batches):
            yield next(self._iterator)

    def state(self) -> Any:
        """Return where the iterator is."""
        return self._iterator.get_state()

    def close(self) -> None:
        """Let go of the iterator, which ends its workers."""
        self._iterator = None
