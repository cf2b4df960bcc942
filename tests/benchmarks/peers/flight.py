"""Arrow Flight: a server that holds the decoded shards and gathers random rows for each batch.

It knows its order beforehand, and has no place to go on from: what `flight_baseline.py` says.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import torch

from benchmarks.flight_baseline import serve_flight
from benchmarks.peers.samples import load

_START_S = 60.0


class Reader:
    """Starts one server, and reads it by Flight's own client."""

    def __init__(self, folder: Path, remote: str) -> None:
        assert not remote
        self.files = folder / "ours"
        samples = load(folder / "samples")
        self._batches = samples.sample_count // samples.batch_size
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._server = context.Process(
            target=serve_flight, args=((str(self.files), samples.batch_size), theirs), name="flight"
        )
        self._server.start()
        if not self._pipe.poll(_START_S):
            raise RuntimeError(f"the Flight server was not ready within {_START_S:.0f} s")
        self._address = self._pipe.recv()

    def prepare(self) -> None:
        """Nothing is left of an earlier stream."""

    def open(self, workers: int, state: Any) -> _Stream:
        """Connect."""
        assert not workers
        assert state is None
        return _Stream(self._address, self._batches)

    def close(self) -> None:
        """End the server."""
        self._pipe.send("end")
        self._server.join(_START_S)


class _Stream:
    def __init__(self, address: str, batches: int) -> None:
        self._client = fl.connect(address)
        self._batches = batches

    def epoch(self) -> Iterator[Mapping[str, Any]]:
        reader = self._client.do_get(fl.Ticket(b"gather"))
        try:
            for _ in range(self._batches):
                batch = reader.read_chunk().data
                assert batch is not None
                yield {name: _value(batch.column(name)) for name in batch.schema.names}
        finally:
            reader.cancel()

    def state(self) -> None:
        return None

    def close(self) -> None:
        self._client.close()


def _value(column: Any) -> Any:
    if pa.types.is_fixed_size_list(column.type):
        values = column.flatten().to_numpy(zero_copy_only=True)
        return _tensor(values).view(len(column), column.type.list_size)
    if pa.types.is_primitive(column.type):
        return _tensor(column.to_numpy(zero_copy_only=True))
    return column.to_pylist()


def _tensor(values: Any) -> torch.Tensor:
    return torch.from_numpy(values)
