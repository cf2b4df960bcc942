"""Watch the memory of a client that reads for a long time.

``python tests/benchmarks/soak_client.py [--seconds 3600]`` serves a small dataset through a private
server, reads it over and over, breaks the stream now and then, and prints what is resident at
least and at most in each half of the time, its first tenth left out. It ends with 1 if either grew
by more than its bound. What is resident at least tells a leak: at most there are 20 to 25 MiB more,
now and then, which the C library keeps of messages that were freed, and a half may miss them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.client import RemoteDataset, Transport
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
        dataset = RemoteDataset(
            None, folder, batch_size=_BATCH, transport=Transport(prefetch_bytes=4 << 20)
        )
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
    parser.add_argument("--most-mib", type=float, default=8.0, help="growth of the least allowed")
    parser.add_argument("--peak-mib", type=float, default=32.0, help="growth of the most allowed")
    given = parser.parse_args()
    readings, count = soak(given.seconds)
    readings = readings[len(readings) // 10 :]
    half = len(readings) // 2
    first, second = readings[:half], readings[half:]
    least, most = (min(first), min(second)), (max(first), max(second))
    print(
        f"{count} batches; resident at least {least[0]:.1f} MiB and then {least[1]:.1f}, "
        f"at most {most[0]:.1f} and then {most[1]:.1f}"
    )
    return int(least[1] - least[0] > given.most_mib or most[1] - most[0] > given.peak_mib)


if __name__ == "__main__":
    sys.exit(main())
