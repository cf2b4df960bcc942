"""What the frameworks train here: a line through samples ``x (8,) float32`` and ``y float32``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.server import Server
from support.datasets import write_dataset
from support.running import server_of

GLOBAL_BATCH, STEPS = 48, 10
"""Samples of a global batch, and how many of these an epoch has; five samples are left over."""

SAMPLES, HELD_OUT = GLOBAL_BATCH * STEPS + 5, 101


def line(count: int) -> pa.Table:
    """Return samples of a line, each with its number as ``id``."""
    x = np.random.default_rng(count).random((count, 8), dtype=np.float32)
    columns = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 8)
    y = pa.array(x @ np.arange(8, dtype=np.float32))
    return pa.table({"x": columns, "y": y, "id": np.arange(count)})


@contextmanager
def line_server(folder: Path, samples: int = SAMPLES) -> Iterator[Server]:
    """Serve ``train``, of so many samples, and ``val``."""
    for name, count in (("train", samples), ("val", HELD_OUT)):
        write_dataset(str(folder / name), line(count), shard_samples=[count])
    with server_of({name: str(folder / name) for name in ("train", "val")}) as server:
        yield server
