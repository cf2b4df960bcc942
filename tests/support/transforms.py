"""Functions that tests register with a server; they run in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def noise(batch: pa.RecordBatch, keys: pa.UInt64Array) -> pa.RecordBatch:
    """Add a random number to each row, and double its tokens."""
    drawn = keys.to_numpy() >> np.uint64(40)
    tokens: Any = batch.column("tokens")
    return pa.RecordBatch.from_arrays(
        [
            batch.column("number"),
            pa.array(drawn.astype(np.int64)),
            pa.LargeListArray.from_arrays(tokens.offsets, pc.multiply(tokens.values, 2)),
            pc.utf8_upper(batch.column("text")),
            batch.column("grid"),
            pc.invert(batch.column("even")),
        ],
        names=["number", "noise", "tokens", "text", "grid", "odd"],
    )


def raises(batch: pa.RecordBatch, keys: pa.UInt64Array) -> pa.RecordBatch:
    """Fail as functions do, but for a batch of no rows."""
    del keys
    if batch.num_rows:
        raise ValueError("the function does not like this batch")
    return batch


def crashes(batch: pa.RecordBatch, keys: pa.UInt64Array) -> pa.RecordBatch:
    """Take the process with it, but for a batch of no rows."""
    del keys
    if batch.num_rows:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def hangs(batch: pa.RecordBatch, keys: pa.UInt64Array) -> pa.RecordBatch:
    """Never end, but for a batch of no rows; say which process it is."""
    del keys
    if batch.num_rows:
        Path(os.environ["HANGS_FILE"]).write_text(str(os.getpid()))
        time.sleep(600)
    return batch


def holds(batch: pa.RecordBatch, keys: pa.UInt64Array) -> pa.RecordBatch:
    """Never end, but for a batch of no rows, and let no other thread run meanwhile."""
    del keys
    if batch.num_rows:
        Path(os.environ["HANGS_FILE"]).write_text(str(os.getpid()))
        re.fullmatch("(a+)+b", "a" * 100)
    return batch


def drops(batch: pa.RecordBatch, keys: pa.UInt64Array) -> pa.RecordBatch:
    """Lose a row."""
    del keys
    return batch.slice(1)


def wavers(batch: pa.RecordBatch, keys: pa.UInt64Array) -> pa.RecordBatch:
    """Make other columns of a batch with rows."""
    del keys
    return batch.select([0]) if batch.num_rows else batch


def lists(batch: pa.RecordBatch, keys: pa.UInt64Array) -> list[int]:
    """Return what is not a batch."""
    del keys
    return [batch.num_rows]
