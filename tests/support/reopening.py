"""A client that breaks off its streams, over and over.

Run as a program with the address of a server and the name of a dataset. It writes by how many KiB
what is resident has grown over the later streams, in that of several parts in which it grew least:
a pool that fills up on a busy machine grows in some of them, and a leak in all.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

from headrace.client import NumpyDataset, Transport

FIRST, PARTS, THEN = 160, 4, 80
"""Streams until most pools are filled; then how many parts are counted, and the streams of each."""


def _resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


def main() -> None:
    """Read one batch of each stream."""
    address, name = sys.argv[1:]
    _break_off(address, name, FIRST)
    grown = []
    for _ in range(PARTS):
        before = _resident_kib()
        _break_off(address, name, THEN)
        grown.append(_resident_kib() - before)
    os.write(1, f"{min(grown)}\n".encode())


def _break_off(address: str, name: str, streams: int) -> None:
    for _ in range(streams):
        dataset = NumpyDataset(
            address, name, batch_size=16, transport=Transport(prefetch_bytes=1 << 20)
        )
        with closing(dataset.views()) as views:
            next(views)


if __name__ == "__main__":
    main()
