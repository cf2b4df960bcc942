"""A job whose ranks share a private server.

Run as a program with the URL of a dataset and the number of ranks, each a process of its own. Each
reads an epoch, prints the sample ids that it got as JSON, and waits to be killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch

from headrace.client import RemoteDataset, Sharding


def _rank(url: str, rank: int, world_size: int) -> None:
    dataset = RemoteDataset(
        None,
        url,
        rank=rank,
        world_size=world_size,
        epochs=1,
        sharding=Sharding(global_batch_size=8 * world_size),
    )
    ids = []
    for batch in dataset:
        numbers = batch["number"]
        assert isinstance(numbers, torch.Tensor)
        ids += numbers.tolist()
    # One write, so that lines of ranks do not mix.
    os.write(1, (json.dumps(ids) + "\n").encode())
    signal.pause()


def main() -> None:
    """Fork the ranks, before anything of gRPC runs, and wait for them."""
    url, world_size = sys.argv[1], int(sys.argv[2])
    for rank in range(1, world_size):
        if os.fork() == 0:
            _rank(url, rank, world_size)
    _rank(url, 0, world_size)


if __name__ == "__main__":
    main()
