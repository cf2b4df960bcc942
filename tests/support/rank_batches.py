"""Read what one rank gets, of runs whose ranks are compared."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

from headrace.client import Batch, RemoteDataset, Selection, Sharding
from headrace.server import Server

GLOBAL_BATCH = 12
"""Samples: for worlds of 1, 2, 3, 4, 6 or 12 ranks."""

SEED = 5


def rank_batches(
    server: Server,
    name: str | Selection,
    stages: list[Any],
    *,
    rank: int = 0,
    world: int = 1,
    epochs: int = 2,
    deal: Literal["balanced"] | None = None,
    token: bytes | None = None,
    **options: Any,
) -> Iterator[Batch]:
    """Yield a rank's batches of all epochs, in an order of `SEED`, without dropping any sample."""
    dataset = RemoteDataset(
        server.address,
        name,
        batch_size=GLOBAL_BATCH // world,
        stages=stages,
        rank=rank,
        world_size=world,
        epochs=epochs,
        sharding=Sharding(deal=deal),
        **{"seed": SEED, "end": "uneven", **options},
    )
    dataset.resume(token)
    return chain.from_iterable(dataset for _ in range(epochs))
