"""Measure how long a trainer that starts again waits for its first batch, from a warm server.

``PYTHONPATH=tests python tests/benchmarks/bench_resume.py`` serves rows on this machine, reads into
the middle of an epoch, and then starts processes that load the state and take one batch: by the
dataset itself, and by a `BatchLoader` with workers. The clock runs from the first ``next()``, in a
process that has imported torch and headrace.client.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from headrace.client import Batch, BatchLoader, RemoteDataset


def main() -> None:
    """Serve, read, start again, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--child", nargs=3, metavar=("TARGET", "WORKERS", "STATE"))
    arguments = parser.parse_args()
    if arguments.child:
        target, workers, state = arguments.child
        print(_first_ms(target, int(workers), json.loads(Path(state).read_text())))
        return
    with tempfile.TemporaryDirectory() as folder, _served(f"{folder}/rows") as address:
        state_file = Path(folder, "state.json")
        state_file.write_text(json.dumps(_read(address)))
        print(
            f"# {os.cpu_count()} cores, {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}\n"
            f"{'first batch of a resume, ms':<32}{'median':>8}{'worst':>8}"
        )
        for name, workers in (("dataset", 0), ("2 workers", 2)):
            child = [__file__, "--child", address, str(workers), str(state_file)]
            times = [_child_ms(child) for _ in range(arguments.rounds)]
            print(f"{name:<32}{statistics.median(times):>8.1f}{max(times):>8.1f}")


@contextmanager
def _served(url: str) -> Iterator[str]:
    # Not in the processes that are measured: trainers have no server.
    from headrace.server import ServerConfig, start_server  # noqa: PLC0415
    from support.datasets import write_rows  # noqa: PLC0415

    write_rows(url, sample_count=200_000, width=16)
    with start_server(ServerConfig(datasets={"rows": url}, listen="127.0.0.1:0")) as server:
        yield server.address


def _dataset(target: str) -> RemoteDataset[Batch]:
    return RemoteDataset(target, "rows", batch_size=64, seed=1)


def _read(target: str) -> dict[str, Any]:
    """Read into the middle of the epoch, which warms the server, and return the state."""
    dataset = _dataset(target)
    for _ in islice(dataset, 1_500):
        pass
    return dataset.state_dict()


def _child_ms(arguments: list[str]) -> float:
    command = [sys.executable, *arguments]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _first_ms(target: str, workers: int, state: dict[str, Any]) -> float:
    dataset = _dataset(target)
    loader = BatchLoader(dataset, num_workers=workers) if workers else dataset
    loader.load_state_dict(state)
    began = time.perf_counter()
    batches = iter(loader)
    next(batches)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
