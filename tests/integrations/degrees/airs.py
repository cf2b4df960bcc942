"""Databricks' DataLoader, by the states that it returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from databricks.air.data import DataLoader
from torch import distributed
from torch.utils.data import IterableDataset

from headrace.integrations.databricks import remote, trained
from integrations.degrees.told import EPOCHS, EVERY, SHARDING, Told, leave, loss_of, rows
from integrations.line import STEPS


class Rows(IterableDataset[Any]):
    """What Databricks calls checkpointable, over the rows of one rank."""

    def __init__(self) -> None:
        """Deal them."""
        self.rows = rows()[distributed.get_rank() :: distributed.get_world_size()]
        self.delivered = 0

    def state_dict(self) -> dict[str, Any]:
        """Say how many the loader has got."""
        return {"delivered": self.delivered}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after them."""
        self.delivered = state_dict["delivered"]

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of an epoch."""
        for row in self.rows[self.delivered :]:
            self.delivered += 1
            yield row
        self.delivered = 0


def headrace(told: Told) -> None:
    """Read from a server; the state is the same on every rank."""
    distributed.init_process_group("gloo")
    _train(told, trained(remote(told.address, "train", seed=3, sharding=SHARDING)), saver=0)


def own(told: Told) -> None:
    """Read by Databricks' loader; each rank has a state."""
    distributed.init_process_group("gloo")
    loader = DataLoader(Rows(), batch_size=told.batch_size, num_workers=0, prefetch_factor=None)
    _train(told, loader, saver=distributed.get_rank())


def _train(told: Told, loader: Any, *, saver: int) -> None:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found, step = told.newest(f"of{saver}-*")
    if found is not None:
        state = torch.load(found)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["data"])
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for epoch in range(step // STEPS, EPOCHS):
        for batch in loader:
            loss = loss_of(parallel, batch)
            told.note(epoch, step, batch["id"], loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % EVERY == 0 and distributed.get_rank() == saver:
                state = {"model": model.state_dict(), "data": loader.state_dict()}
                torch.save(state, told.folder / f"of{saver}-{step}.pt")
    leave()
