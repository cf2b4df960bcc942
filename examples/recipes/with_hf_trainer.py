"""Hugging Face Trainer: its own loader is left out, the state lies beside its checkpoint.

python examples/recipes/with_hf_trainer.py localhost:50051 line trainer-output --steps 100
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import regression
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from headrace.client import RemoteDataset

STATE = "headrace.json"


class Line(nn.Module):
    """The model, as Trainer wants it."""

    def __init__(self) -> None:
        """Make the line."""
        super().__init__()
        self.line = regression.make_model()

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, scale: float, place: tuple[int, int]
    ) -> dict[str, torch.Tensor]:
        """Return the loss."""
        loss = nn.functional.mse_loss(self.line(x)[:, 0], y) * scale
        regression.report(*place, loss.item())
        return {"loss": loss}


class RemoteTrainer(Trainer):
    """A Trainer that iterates the dataset itself."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader that hands the server's batches through, as the dictionaries wanted."""
        return DataLoader(self.train_dataset, batch_size=None, collate_fn=_inputs)


class KeepState(TrainerCallback):
    """Saves the dataset's state into each checkpoint."""

    def __init__(self, dataset: RemoteDataset) -> None:
        """Remember whose."""
        self._dataset = dataset

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Write it; it is the same on every rank."""
        del control, kwargs
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        (folder / STATE).write_text(json.dumps(self._dataset.state_dict()))


def _inputs(batch: Any) -> dict[str, object]:
    place = (batch.step, batch.position)
    return {"x": batch["x"], "y": batch["y"], "scale": batch.loss_scale, "place": place}


def main() -> None:
    """Train."""
    given = regression.arguments()
    dataset = RemoteDataset(
        given.target, given.dataset, global_batch_size=regression.GLOBAL_BATCH, seed=regression.SEED
    )
    found = get_last_checkpoint(str(given.checkpoint)) if given.checkpoint.exists() else None
    if found is not None:
        dataset.load_state_dict(json.loads((Path(found) / STATE).read_text()))
    settings = TrainingArguments(
        output_dir=str(given.checkpoint),
        max_steps=given.steps,
        save_steps=given.steps,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        # The dataset knows where it was; Trainer would read and drop what came before.
        ignore_data_skip=True,
    )
    trainer = RemoteTrainer(Line(), settings, train_dataset=dataset, callbacks=[KeepState(dataset)])
    trainer.train(resume_from_checkpoint=found)
    dataset.close()


if __name__ == "__main__":
    main()
