"""Watch the memory of a client that reads for a long time.

``python tests/benchmarks/soak_client.py [--seconds 3600]`` serves a small dataset through a private
server, reads it over and over, breaks the stream now and then, and prints what is resident. It
ends with 1 if the second half of the time needed more than the first, by the bound given.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.client import RemoteDataset
from headrace.storage import ShardWriter, commit_dataset, open_store

_SAMPLES, _BATCH = 8192, 64


def _write(folder: str) -> None:
    texts = [f"sample {number} " * (number % 50) for number in range(_SAMPLES)]
    rows = pa.array(np.arange(_SAMPLES * 256, dtype=np.float32))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(rows, 256), "text": pa.array(texts)})
    store = open_store(folder)
    writer = ShardWriter(store, "part-0.arrow", schema=table.schema)
    for batch in table.to_batches(max_chunksize=1024):
        writer.append(batch)
    commit_dataset(store, table.schema, [writer.close()])


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def soak(seconds: float) -> tuple[list[float], int]:
    """Read for a while; return what was resident after each epoch, in MiB, and the batches."""
    readings, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        _write(folder)
        dataset = RemoteDataset(None, folder, batch_size=_BATCH, prefetch_bytes=4 << 20)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for batch in dataset:
                count += 1
                assert batch["text"][0] is not None
            readings.append(_resident_mib())
            if len(readings) % 10 == 0:
                # A stream that is dropped in mid-epoch gives back what it held.
                next(iter(dataset))
                dataset.close()
        dataset.close()
    return readings, count


def main() -> int:
    """Print the readings; return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--most-mib", type=float, default=8.0, help="growth that is allowed")
    given = parser.parse_args()
    readings, count = soak(given.seconds)
    half = len(readings) // 2
    first, second = max(readings[:half]), max(readings[half:])
    print(f"{count} batches in {len(readings)} epochs; at most {first:.1f} MiB, then {second:.1f}")
    return int(second - first > given.most_mib)


if __name__ == "__main__":
    sys.exit(main())
