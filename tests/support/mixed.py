"""A small dataset with a column of each kind that clients tell apart, and a server of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from support.datasets import write_dataset
from support.running import server_of

SAMPLES = 100


def write_mixed(url: str) -> None:
    """Write 100 samples: ``number`` is the id, every seventh ``name`` and ``maybe`` is null."""
    ids = range(SAMPLES)
    table = pa.table(
        {
            "number": pa.array(ids, pa.int64()),
            "name": pa.array([None if i % 7 == 0 else f"sample {i}" for i in ids]),
            "blob": pa.array([bytes([i]) * (i % 3) for i in ids]),
            "maybe": pa.array([None if i % 7 == 0 else i / 2 for i in ids], pa.float32()),
            "ragged": pa.array([list(range(i % 4)) for i in ids], pa.list_(pa.int32())),
            "grid": pa.FixedSizeListArray.from_arrays(pa.array(range(2 * SAMPLES), pa.int16()), 2),
        }
    )
    write_dataset(url, table, shard_samples=[60, 40])


@contextmanager
def mixed_server(url: str) -> Iterator[str]:
    """Serve it as ``mixed``; gives the address."""
    with server_of({"mixed": url}) as server:
        yield server.address
