"""A client that breaks off its streams, over and over.

Run as a program with the address of a server and the name of a dataset. It writes by how many KiB
what is resident has grown over the later streams.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

from headrace.client import NumpyDataset

FIRST, THEN = 160, 160
"""Streams until every pool is filled, and those that are counted. After 40 the pools still grew, by
20 to 40 KiB a stream over the next 120, and by 7 to 13 over the next 480."""


def _resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


def main() -> None:
    """Read one batch of each stream."""
    address, name = sys.argv[1:]
    before = 0
    for number in range(FIRST + THEN):
        if number == FIRST:
            before = _resident_kib()
        dataset = NumpyDataset(address, name, batch_size=16, prefetch_bytes=1 << 20)
        with closing(dataset.views()) as views:
            next(views)
    os.write(1, f"{_resident_kib() - before}\n".encode())


if __name__ == "__main__":
    main()
