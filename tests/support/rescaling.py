"""An epoch that two ranks of one server begin, and three of the next one end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from headrace.bench.children import serving
from headrace.client import RemoteDataset
from headrace.server import DatasetConfig
from support.running import server_of

_GLOBAL_BATCH = 12
_TRAINER_S = 60


def rescaled(served: str | DatasetConfig) -> list[int]:
    """Return the numbers of an epoch, shuffled, of which two ranks take three steps.

    Args:
        served: A dataset of at least three batches of 12 samples, with the numbers in ``x``.
    """
    config: Mapping[str, DatasetConfig] = {
        "d": DatasetConfig(url=served) if isinstance(served, str) else served
    }
    with server_of(config) as server, ExitStack() as ranks:
        seen, state = _begun(server.address, "d", "x", ranks)
    with server_of(config) as server:
        return seen + _ended(server.address, "d", "x", state)


def rescaled_by_kills(columns: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the same for datasets whose trainer gets SIGKILL in mid-epoch, and then their server.

    Both ranks of the trainer have gone two batches beyond the state that is left of them by then.

    Args:
        columns: The column of the numbers, by the URL of each dataset.
    """
    urls = {f"d{at}": url for at, url in enumerate(columns)}
    trainer = [sys.executable, "-m", "support.rescaling"]
    with serving(urls, stderr=subprocess.DEVNULL) as server:
        asked = json.dumps([server.address, {name: columns[url] for name, url in urls.items()}])
        killed = subprocess.run(
            [*trainer, asked],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE,
            timeout=_TRAINER_S,
            check=False,
        )
        server.process.kill()
    assert -signal.SIGKILL == killed.returncode
    begun = json.loads(killed.stdout)
    with serving(urls, stderr=subprocess.DEVNULL) as server:
        return {
            url: begun[name][0] + _ended(server.address, name, columns[url], begun[name][1])
            for name, url in urls.items()
        }


def _begun(
    address: str, name: str, column: str, kept: ExitStack, *, more: int = 0
) -> tuple[list[int], dict[str, Any]]:
    """Return the numbers of three steps and the state after them, and take some batches more."""
    ranks = _ranks(address, name, 2)
    for one in ranks:
        kept.enter_context(closing(one))
    loops = [iter(one) for one in ranks]
    seen = [int(number) for _ in range(3) for loop in loops for number in next(loop)[column]]
    state = ranks[0].state_dict()
    for loop in loops * more:
        next(loop, None)
    return seen, state


def _ended(address: str, name: str, column: str, state: dict[str, Any]) -> list[int]:
    """Return the numbers of the rest of the epoch, on three ranks."""
    seen = []
    for one in _ranks(address, name, 3):
        with closing(one):
            one.load_state_dict(state)
            seen += [int(number) for batch in one for number in batch[column]]
    return seen


def _ranks(address: str, name: str, count: int) -> list[RemoteDataset]:
    return [
        RemoteDataset(
            address,
            name,
            batch_size=_GLOBAL_BATCH // count,
            epochs=1,
            end="uneven",
            rank=rank,
            seed=1,
            world_size=count,
        )
        for rank in range(count)
    ]


def _train_until_killed(address: str, columns: Mapping[str, str]) -> None:
    """Begin epochs of datasets, print what they had and their states, and end without a word."""
    with ExitStack() as ranks:
        begun = {
            name: _begun(address, name, column, ranks, more=2) for name, column in columns.items()
        }
        sys.stdout.write(json.dumps(begun))
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _train_until_killed(*json.loads(sys.argv[1]))
