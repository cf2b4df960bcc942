"""Hugging Face Trainer: its own loader is left out, the state lies beside its checkpoint.

torchrun --nproc-per-node 2 examples/recipes/with_hf_trainer.py \
    localhost:50051 line trainer-output --steps 100 --validation line
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import regression
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    EvalPrediction,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from headrace.client import RemoteDataset, Sharding

STATE = "headrace.json"


class Line(nn.Module):
    """The model, as Trainer wants it."""

    def __init__(self) -> None:
        """Make the line."""
        super().__init__()
        self.line = regression.make_model()

    def forward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
        place: tuple[int, int] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return the loss, and the predictions ``(samples,)`` for metrics."""
        prediction = self.line(x)[:, 0]
        losses = nn.functional.mse_loss(prediction, y, reduction="none")
        loss = (losses * weights).sum()
        if place is not None:
            _report(place, loss.detach().clone())
        return {"loss": loss, "prediction": prediction}


class RemoteTrainer(Trainer):
    """A Trainer that iterates the datasets itself."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader that hands the server's batches through, as the dictionaries wanted."""
        return DataLoader(self.train_dataset, batch_size=None, collate_fn=_training_inputs)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the same for validation; Trainer drops the repeats that fill up the last batch."""
        return DataLoader(
            eval_dataset or self.eval_dataset, batch_size=None, collate_fn=_validation_inputs
        )


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


def _training_inputs(batch: Any) -> dict[str, object]:
    # Such weights make the mean of the ranks' losses that of the global batch.
    x, y = regression.tensors(batch)
    weights = torch.full_like(y, batch.sum_scale)
    return {"x": x, "y": y, "weights": weights, "place": (batch.step, batch.position)}


def _validation_inputs(batch: Any) -> dict[str, object]:
    # The loss is the mean over the rank's own samples; Trainer weighs it by their number.
    x, y = regression.tensors(batch)
    own = (~batch.is_pad).float()
    return {"x": x, "y": y, "weights": own / own.sum()}


def _report(place: tuple[int, int], loss: torch.Tensor) -> None:
    """Print the mean of the ranks' losses."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks > 1:
        dist.all_reduce(loss)
    if ranks == 1 or dist.get_rank() == 0:
        regression.report(*place, loss.item() / ranks)


def _metrics(found: EvalPrediction) -> dict[str, float]:
    right = regression.right(torch.tensor(found.predictions), torch.tensor(found.label_ids))
    return {"count": len(right), "right": right.mean().item()}


def main() -> None:
    """Train."""
    given = regression.arguments()
    dataset = RemoteDataset(
        given.target,
        given.dataset,
        seed=regression.SEED,
        sharding=Sharding(global_batch_size=regression.GLOBAL_BATCH),
    )
    found = get_last_checkpoint(str(given.checkpoint)) if given.checkpoint.exists() else None
    if found is not None:
        dataset.load_state_dict(json.loads((Path(found) / STATE).read_text()))
    settings = TrainingArguments(
        output_dir=str(given.checkpoint),
        max_steps=given.steps,
        save_steps=given.steps,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        per_device_eval_batch_size=regression.VALIDATION_BATCH,
        label_names=["y"],
        # The dataset knows where it was; Trainer would read and drop what came before.
        ignore_data_skip=True,
    )
    trainer = RemoteTrainer(
        Line(),
        settings,
        train_dataset=dataset,
        callbacks=[KeepState(dataset)],
        compute_metrics=_metrics,
    )
    trainer.train(resume_from_checkpoint=found)
    dataset.close()
    if given.validation is not None:
        with regression.validation_set(
            given.target,
            given.validation,
            rank=settings.process_index,
            world_size=settings.world_size,
        ) as validation:
            measured = trainer.evaluate(validation)
        if trainer.is_world_process_zero():
            regression.report_validation(measured["eval_count"], measured["eval_right"])
    # The model, which the trainer holds, before the group: see ddp.py.
    accelerator = trainer.accelerator
    del trainer
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
