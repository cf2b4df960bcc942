"""What streams that are broken off leave behind in the client's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from support import reopening
from support.datasets import write_dataset
from support.running import server_of

SAMPLES, WIDTH = 4096, 1024
MOST_KIB = 40
"""A stream. Found were 0 to 19; of calls that gRPC never frees, with their buffers, 74 to 95."""


def test_a_stream_that_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    """Its connection and what had come over it are freed, however often that happens."""
    rows = pa.array(np.zeros(SAMPLES * WIDTH, dtype=np.float32))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(rows, WIDTH)})
    url = str(tmp_path / "d")
    write_dataset(url, table, shard_samples=[SAMPLES], block_bytes=1 << 20)

    with server_of({"d": url}) as server:
        command = [sys.executable, reopening.__file__, server.address, "d"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert 0 == done.returncode, done.stderr
    assert int(done.stdout) <= reopening.THEN * MOST_KIB
