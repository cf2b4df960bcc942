"""An epoch that two ranks of one server begin, and three of the next one end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from headrace.client import RemoteDataset
from headrace.server import DatasetConfig
from support.running import server_of

_GLOBAL_BATCH = 12


def rescaled(served: str | DatasetConfig, *, column: str = "x") -> list[int]:
    """Return the numbers of an epoch, shuffled, of which two ranks take three steps.

    Args:
        served: A dataset of at least three batches of 12 samples.
        column: The column of the numbers.
    """
    config: Mapping[str, DatasetConfig] = {
        "d": DatasetConfig(url=served) if isinstance(served, str) else served
    }
    seen: list[int] = []
    with server_of(config) as server:
        begun = _ranks(server.address, 2)
        loops = [iter(one) for one in begun]
        for _ in range(3):
            seen += [int(number) for loop in loops for number in next(loop)[column]]
        state = begun[0].state_dict()
        for one in begun:
            one.close()
    with server_of(config) as server:
        for one in _ranks(server.address, 3):
            with closing(one):
                one.load_state_dict(state)
                seen += [int(number) for batch in one for number in batch[column]]
    return seen


def _ranks(address: str, count: int) -> list[RemoteDataset]:
    return [
        RemoteDataset(
            address,
            "d",
            batch_size=_GLOBAL_BATCH // count,
            epochs=1,
            end="uneven",
            rank=rank,
            seed=1,
            world_size=count,
        )
        for rank in range(count)
    ]
