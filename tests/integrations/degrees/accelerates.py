"""Accelerate, by ``save_state`` and ``load_state``."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader

from headrace.integrations.accelerate import remote, trained
from integrations.degrees.told import EPOCHS, EVERY, SHARDING, Told, leave, loss_of, rows
from integrations.line import STEPS


def headrace(told: Told) -> None:
    """Read from a server."""
    accelerator = Accelerator(cpu=True)
    loader = trained(accelerator, remote(told.address, "train", seed=3, sharding=SHARDING))
    _train(told, accelerator, loader, skips=False)


def skipping(told: Told) -> None:
    """Read by DataLoader, and resume by ``skip_first_batches``."""
    _train_on_rows(told, DataLoaderConfiguration(), skips=True)


def seeded(told: Told) -> None:
    """Do so with the sampler whose order depends on a seed and the epoch alone."""
    _train_on_rows(told, DataLoaderConfiguration(use_seedable_sampler=True), skips=True)


def stateful(told: Told) -> None:
    """Read by torchdata's loader, whose state ``load_state`` loads, with that sampler."""
    chosen = DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
    _train_on_rows(told, chosen, skips=False)


def _train_on_rows(told: Told, chosen: DataLoaderConfiguration, *, skips: bool) -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=chosen)
    set_seed(1)
    loader = DataLoader(rows(), told.batch_size, shuffle=True)
    _train(told, accelerator, accelerator.prepare(loader), skips=skips)


def _train(told: Told, accelerator: Any, loader: Any, *, skips: bool) -> None:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    found, step = told.newest("saved-*")
    if found is not None:
        accelerator.load_state(str(found))
    first, inside = divmod(step, STEPS)
    for epoch in range(first, EPOCHS):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        is_begun = skips and epoch == first and inside
        batches = accelerator.skip_first_batches(loader, inside) if is_begun else loader
        for batch in batches:
            loss = loss_of(model, batch)
            told.note(epoch, step, batch["id"], loss.item())
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                accelerator.save_state(str(told.folder / f"saved-{step}"))
    leave()
