"""An epoch that two ranks of one server begin, and three of the next one end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

from headrace.bench.children import serving
from headrace.client import RemoteDataset
from headrace.server import DatasetConfig
from support.running import server_of

_GLOBAL_BATCH = 12


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
    """Return the same for datasets whose server and ranks are killed at once, in mid-epoch.

    The ranks have gone two batches beyond the state that is left of them by then.

    Args:
        columns: The column of the numbers, by the URL of each dataset.
    """
    urls = {f"d{at}": url for at, url in enumerate(columns)}
    begun = {}
    with ExitStack() as ranks, serving(urls, stderr=subprocess.DEVNULL) as server:
        for name, url in urls.items():
            begun[name] = _begun(server.address, name, columns[url], ranks, more=2)
        server.process.kill()
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
