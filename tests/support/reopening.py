"""A client that breaks off its streams, over and over.

Run as a program with the address of a server and the name of a dataset. It writes by how many KiB
what is resident has grown over the later streams.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

from headrace.client import NumpyDataset, Transport

FIRST, THEN = 160, 320
"""Streams until most pools are filled, and those that are counted: so many that a pool which grows
by 4 MiB at once, as happens on a busy machine, is a small part of what a leak would be."""


def _resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


def main() -> None:
    """Read one batch of each stream."""
    address, name = sys.argv[1:]
    before = 0
    for number in range(FIRST + THEN):
        if number == FIRST:
            before = _resident_kib()
        dataset = NumpyDataset(
            address, name, batch_size=16, transport=Transport(prefetch_bytes=1 << 20)
        )
        with closing(dataset.views()) as views:
            next(views)
    os.write(1, f"{_resident_kib() - before}\n".encode())


if __name__ == "__main__":
    main()
