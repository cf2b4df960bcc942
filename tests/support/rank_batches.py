"""Read what one rank gets, of runs whose ranks are compared."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from headrace.client import Batch, RemoteDataset
from headrace.server import Server

GLOBAL_BATCH = 12
"""Samples: for worlds of 1, 2, 3, 4, 6 or 12 ranks."""

SEED = 5


def rank_batches(
    server: Server,
    name: str,
    steps: list[Any],
    *,
    rank: int = 0,
    world: int = 1,
    epochs: int = 2,
    **options: Any,
) -> Iterator[Batch]:
    """Yield a rank's batches of all epochs, in an order of `SEED`, without dropping any sample."""
    dataset = RemoteDataset(
        server.address,
        name,
        batch_size=GLOBAL_BATCH // world,
        steps=steps,
        rank=rank,
        world_size=world,
        epochs=epochs,
        **{"seed": SEED, "end": "uneven", **options},
    )
    return chain.from_iterable(dataset for _ in range(epochs))
