"""Accelerate, by ``save_state`` and ``load_state``."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from headrace.integrations.accelerate import remote, trained
from integrations.degrees.told import EPOCHS, EVERY, SHARDING, Told, loss_of
from integrations.line import STEPS


def headrace(told: Told) -> None:
    """Read from a server."""
    accelerator = Accelerator(cpu=True)
    loader = trained(accelerator, remote(told.address, "train", seed=3, sharding=SHARDING))
    _train(told, accelerator, loader)


def _train(told: Told, accelerator: Any, loader: Any) -> None:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    found, step = told.newest("saved-*")
    if found is not None:
        accelerator.load_state(str(found))
    for epoch in range(step // STEPS, EPOCHS):
        for batch in loader:
            loss = loss_of(model, batch)
            told.note(epoch, step, batch["id"], loss.item())
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                accelerator.save_state(str(told.folder / f"saved-{step}"))
    accelerator.end_training()
