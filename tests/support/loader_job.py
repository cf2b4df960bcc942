"""A job with a private server and DataLoader workers.

Run as a program with the URL of a dataset. It reads one batch, writes the ids of its processes as
JSON, and goes on reading until its input ends, or somebody kills it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading

from headrace.client import BatchLoader, RemoteDataset


def main() -> None:
    """Read over and over."""
    asked_to_end = threading.Event()
    dataset = RemoteDataset(None, sys.argv[1], batch_size=4)
    loader = BatchLoader(dataset, num_workers=2)
    batches = iter(loader)
    next(batches)
    workers = [child.pid for child in multiprocessing.active_children()]
    os.write(1, (json.dumps([os.getpid(), *workers]) + "\n").encode())

    def wait_for_the_end() -> None:
        sys.stdin.read()
        asked_to_end.set()

    threading.Thread(target=wait_for_the_end, name="end", daemon=True).start()
    while not asked_to_end.is_set():
        for _ in batches:
            if asked_to_end.is_set():
                break
        batches = iter(loader)


if __name__ == "__main__":
    main()
