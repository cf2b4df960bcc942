"""Lightning, by ``ModelCheckpoint`` and ``ckpt_path``."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from headrace.integrations.lightning import RemoteData, remote
from integrations.degrees.told import EPOCHS, EVERY, SHARDING, Told, loss_of


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
    _fit(told, RemoteData(source))


def _fit(told: Told, data: RemoteData) -> None:
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
    trainer.fit(Line(told), datamodule=data, ckpt_path=told.newest("saved-*")[0])
