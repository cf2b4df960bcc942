"""PyTorch Lightning: the dataset is its own loader, whose state Lightning's checkpoints keep.

torchrun --nproc-per-node 2 examples/recipes/with_lightning.py \
    localhost:50051 line lightning.ckpt --steps 100 --validation line
"""

from __future__ import annotations

import os

import lightning
import regression
import torch

from headrace.client import Batch, RemoteDataset, Sharding


class Line(lightning.LightningModule):
    """The model, as Lightning wants it."""

    def __init__(self) -> None:
        """Make the line."""
        super().__init__()
        self.line = regression.make_model()

    def training_step(self, batch: Batch) -> torch.Tensor:
        """Return the loss; its factor makes the mean over ranks exact."""
        loss = regression.loss_of(self.line, batch)
        total = self.trainer.strategy.reduce(loss.detach(), reduce_op="mean")
        if self.trainer.is_global_zero:
            regression.report(batch.step, batch.position, total.item())
        return loss

    def validation_step(self, batch: Batch) -> None:
        """Add up what is counted over batches and ranks, without the repeats of the last batch."""
        x, y = regression.tensors(batch)
        right = regression.right(self.line(x)[:, 0], y)[~batch.is_pad]
        counts = {"count": float(len(right)), "right": right.sum()}
        self.log_dict(counts, on_epoch=True, reduce_fx="sum", sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return regression.make_optimizer(self.line)


class Remote(lightning.LightningDataModule):
    """The datasets, made in hooks, where Lightning knows rank and world size."""

    def __init__(self, given: regression.Arguments) -> None:
        """Remember what to read."""
        super().__init__()
        self._given = given

    def train_dataloader(self) -> RemoteDataset:
        """Return the dataset; Lightning saves and loads its state."""
        return RemoteDataset(
            self._given.target,
            self._given.dataset,
            seed=regression.SEED,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            sharding=Sharding(global_batch_size=regression.GLOBAL_BATCH),
        )

    def val_dataloader(self) -> RemoteDataset | list[RemoteDataset]:
        """Return the dataset for validation, if there is one."""
        if self._given.validation is None:
            return []
        return regression.validation_set(
            self._given.target,
            self._given.validation,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )

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
        # As many as torchrun has started here.
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        # The server splits batches over ranks.
        use_distributed_sampler=False,
    )
    found = str(given.checkpoint) if given.checkpoint.exists() else None
    line, data = Line(), Remote(given)
    trainer.fit(line, datamodule=data, ckpt_path=found)
    trainer.save_checkpoint(given.checkpoint)
    if given.validation is not None:
        (found_counts,) = trainer.validate(line, datamodule=data, verbose=False)
        count, right = found_counts["count"], found_counts["right"]
        if trainer.is_global_zero:
            regression.report_validation(int(count), right / count)


if __name__ == "__main__":
    main()
