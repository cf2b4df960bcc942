"""Hugging Face Trainer, by its checkpoints and ``resume_from_checkpoint``."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from headrace.integrations.transformers import RemoteTrainer, remote
from integrations.degrees.told import EPOCHS, EVERY, SHARDING, Told, leave, loss_of, rows


class Line(torch.nn.Module):
    """Notes what it is trained on."""

    def __init__(self, told: Told) -> None:
        """Make the model."""
        super().__init__()
        self.line = torch.nn.Linear(8, 1)
        self.note = told.note
        self.trainer: Any = None

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:  # noqa: A002 - a column
        """Return the loss."""
        loss = loss_of(self.line, {"x": x, "y": y})
        state = self.trainer.state
        self.note(int(state.epoch), state.global_step, id, loss.item())
        return {"loss": loss}


def headrace(told: Told) -> None:
    """Read from a server."""
    _train(told, RemoteTrainer, remote(told.address, "train", seed=3, sharding=SHARDING))


def plain(told: Told) -> None:
    """Read by Trainer's own loader."""
    _train(told, Trainer, rows())


def _train(told: Told, kind: Any, dataset: Any) -> None:
    settings = TrainingArguments(
        output_dir=str(told.folder),
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=told.batch_size,
        learning_rate=0.01,
        save_steps=EVERY,
        logging_strategy="no",
    )
    model = Line(told)
    model.trainer = kind(model, settings, train_dataset=dataset)
    model.trainer.train(resume_from_checkpoint=get_last_checkpoint(str(told.folder)))
    leave()
