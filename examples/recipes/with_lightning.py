"""PyTorch Lightning: the data module keeps the dataset's state in Lightning's checkpoint.

python examples/recipes/with_lightning.py localhost:50051 line lightning.ckpt --steps 100
"""

from __future__ import annotations

from typing import Any

import lightning
import regression
import torch

from headrace.client import Batch, RemoteDataset


class Line(lightning.LightningModule):
    """The model, as Lightning wants it."""

    def __init__(self) -> None:
        """Make the line."""
        super().__init__()
        self.line = regression.make_model()

    def training_step(self, batch: Batch) -> torch.Tensor:
        """Return the loss; its factor makes the mean over ranks exact."""
        loss = regression.loss_of(self.line, batch)
        regression.report(batch.step, batch.position, loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return regression.make_optimizer(self.line)


class Remote(lightning.LightningDataModule):
    """The dataset, whose state travels in Lightning's checkpoints."""

    def __init__(self, target: str, name: str) -> None:
        """Remember where to read."""
        super().__init__()
        self._target, self._name = target, name
        self._dataset: RemoteDataset | None = None
        self._state: dict[str, Any] | None = None

    def train_dataloader(self) -> RemoteDataset:
        """Return the dataset: it is its own loader, and knows rank and world size by now."""
        self._dataset = RemoteDataset(
            self._target,
            self._name,
            global_batch_size=regression.GLOBAL_BATCH,
            seed=regression.SEED,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )
        if self._state is not None:
            self._dataset.load_state_dict(self._state)
        return self._dataset

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was trained on."""
        assert self._dataset is not None
        return self._dataset.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it for the dataset, which is not made yet."""
        self._state = state_dict

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Leave the batch where it is: on a GPU, give the dataset device=."""
        del device, dataloader_idx
        return batch


def main() -> None:
    """Train."""
    given = regression.arguments()
    trainer = lightning.Trainer(
        max_steps=given.steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        # The server splits batches over ranks.
        use_distributed_sampler=False,
    )
    found = str(given.checkpoint) if given.checkpoint.exists() else None
    trainer.fit(Line(), datamodule=Remote(given.target, given.dataset), ckpt_path=found)
    trainer.save_checkpoint(given.checkpoint)


if __name__ == "__main__":
    main()
