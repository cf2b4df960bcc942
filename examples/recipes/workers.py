"""One process that trains, and two that receive; started by fork server, spawn or fork.

python examples/recipes/workers.py localhost:50051 line workers.pt --steps 100

No workers are needed, for the dataset prefetches by itself; they pay where the training process
has no time left for receiving. The checkpoint fits any number of them.
"""

from __future__ import annotations

import os
from typing import Literal

import regression
import torch

from headrace.client import BatchLoader, RemoteDataset, Sharding

METHODS: dict[str, Literal["fork", "spawn", "forkserver"]] = {
    "fork": "fork",
    "spawn": "spawn",
    "forkserver": "forkserver",
}


def main() -> None:
    """Train."""
    given = regression.arguments()
    dataset = RemoteDataset(
        given.target,
        given.dataset,
        seed=regression.SEED,
        sharding=Sharding(global_batch_size=regression.GLOBAL_BATCH),
    )
    method = METHODS[os.environ.get("START_METHOD", "forkserver")]
    loader = BatchLoader(dataset, num_workers=2, start_method=method)
    model = regression.make_model()
    optimizer = regression.make_optimizer(model)
    if given.checkpoint.exists():
        saved = torch.load(given.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["dataset"])
    for batch in regression.batches_until(loader, given.steps):
        loss = regression.loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        regression.report(batch.step, batch.position, loss.item())
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**saved, "dataset": loader.state_dict()}, given.checkpoint)


# Workers import this file again, so nothing may run on import.
if __name__ == "__main__":
    main()
