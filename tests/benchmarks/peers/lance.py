"""LanceDB: its own table, its own StreamingDataset and StreamingDataLoader, shuffled by rows.

Training: docs.lancedb.com/training. A ``transform`` makes tensors of a batch that was read, as its
pages do where rows are large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import torch
from lancedb.streaming import StreamingDataLoader, StreamingDataset

from benchmarks.peers.arrow import table_of
from benchmarks.peers.loops import end_workers_soon
from benchmarks.peers.samples import Samples, load

_TABLE = "samples"
_SPLITS = 8
_FRAGMENT_BYTES = 16 << 20


def write(samples: Samples, folder: Path) -> None:
    """Write fragments of 16 MiB."""
    table = table_of(samples)
    rows = max(1, _FRAGMENT_BYTES * samples.sample_count // table.nbytes)
    made = lancedb.connect(str(folder / "lance")).create_table(_TABLE, table.slice(0, rows))
    for start in range(rows, samples.sample_count, rows):
        made.add(table.slice(start, rows))


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the samples of a batch, arrays as tensors that share its memory."""
    columns = {name: _values(batch.column(name)) for name in batch.schema.names}
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(column: Any) -> Any:
    if pa.types.is_fixed_size_list(column.type):
        values = column.flatten().to_numpy(zero_copy_only=False)
        return torch.from_numpy(values.reshape(len(column), -1).copy())
    if pa.types.is_primitive(column.type):
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())
    return column.to_pylist()


class Reader:
    """Reads a local table."""

    def __init__(self, folder: Path, remote: str) -> None:
        assert not remote
        end_workers_soon()
        self.files = folder / "lance"
        self._table = lancedb.connect(str(self.files)).open_table(_TABLE)
        self._batch_size = load(folder / "samples").batch_size

    def prepare(self) -> None:
        """Nothing is left of an earlier stream."""

    def open(self, workers: int, state: Any) -> _Stream:
        """Open a dataset, and its loader for each epoch."""
        return _Stream(self._table, self._batch_size, workers, state)

    def close(self) -> None:
        """End nothing: all is in this process."""


class _Stream:
    def __init__(self, table: Any, batch_size: int, workers: int, state: Any) -> None:
        self._table = table
        self._batch_size = batch_size
        self._workers = workers
        self._epoch = -1
        self._dataset: Any = None
        self._state = state

    def epoch(self) -> Iterator[Mapping[str, Any]]:
        """Yield an epoch; the loader of another one reads another dataset."""
        self._epoch += 1
        self._dataset = StreamingDataset(
            self._table,
            num_splits=_SPLITS,
            shuffle=True,
            shuffle_seed=7,
            epoch=self._epoch,
            transform=rows_of,
        )
        if self._state is not None:
            self._dataset.load_state_dict(self._state)
            self._state = None
        # Its threads do not survive a fork.
        options = {"multiprocessing_context": "forkserver"} if self._workers else {}
        yield from StreamingDataLoader(
            self._dataset, batch_size=self._batch_size, num_workers=self._workers, **options
        )

    def state(self) -> Any:
        """Return where the dataset is; several workers have a state only between steps of all."""
        return None if self._workers else self._dataset.state_dict()

    def close(self) -> None:
        """Let go of the dataset."""
        self._dataset = None
