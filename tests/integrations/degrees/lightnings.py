"""Lightning, by ``ModelCheckpoint`` and ``ckpt_path``."""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import (  # type: ignore[import-untyped] # no py.typed
    StatefulDataLoader,
)
from torchdata.stateful_dataloader.sampler import (  # type: ignore[import-untyped] # the same
    StatefulDistributedSampler,
)

from headrace.integrations.lightning import RemoteData, remote
from integrations.degrees.told import EPOCHS, EVERY, SHARDING, Told, leave, loss_of, rows


class Line(lightning.LightningModule):
    """Notes what it is trained on."""

    def __init__(self, told: Told) -> None:
        """Make the model."""
        super().__init__()
        self.line = torch.nn.Linear(8, 1)
        self.told = told

    def training_step(self, batch: Any) -> torch.Tensor:
        """Return the loss."""
        loss = loss_of(self.line, batch)
        self.told.note(self.current_epoch, self.global_step, batch["id"], loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return one with a state."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def headrace(told: Told) -> None:
    """Read from a server."""
    source = remote(told.address, "train", seed=3, sharding=SHARDING)
    _fit(told, datamodule=RemoteData(source))


def plain(told: Told) -> None:
    """Read by DataLoader."""
    lightning.seed_everything(1)
    _fit(told, DataLoader(rows(), told.batch_size, shuffle=True))


def shuffled(told: Told) -> None:
    """Read by torchdata's loader, whose state is in Lightning's checkpoints."""
    lightning.seed_everything(1)
    _fit(told, StatefulDataLoader(rows(), told.batch_size, shuffle=True))


def stateful(told: Told) -> None:
    """Do so with torchdata's sampler."""
    lightning.seed_everything(1)
    samples = rows()
    sampler = StatefulDistributedSampler(samples, told.ranks, int(os.environ["RANK"]))
    _fit(told, StatefulDataLoader(samples, told.batch_size, sampler=sampler))


def _fit(told: Told, *loader: Any, **given: Any) -> None:
    saving = ModelCheckpoint(
        told.folder,
        filename="saved-{step}",
        auto_insert_metric_name=False,
        save_top_k=-1,
        every_n_train_steps=EVERY,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=told.ranks,
        max_epochs=EPOCHS,
        logger=False,
        callbacks=[saving],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(told), *loader, ckpt_path=told.newest("saved-*")[0], **given)
    leave()
