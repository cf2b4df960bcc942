"""Hugging Face Accelerate: model and optimizer are prepared, the dataset is not.

ACCELERATE_USE_CPU=1 torchrun --nproc-per-node 2 examples/recipes/with_accelerate.py \
    localhost:50051 line accelerate-checkpoint --steps 100 --validation line

On GPUs, `accelerate launch --num_processes 2` does the same; without a GPU it starts one process.
The server splits batches over the ranks; a prepared loader would split them once more.
"""

from __future__ import annotations

import regression
import torch
from accelerate import Accelerator
from torch import nn

from headrace.client import RemoteDataset, Sharding


@torch.no_grad()
def validate(accelerator: Accelerator, model: nn.Module, target: str, name: str) -> torch.Tensor:
    """Return for each sample over all ranks whether the model gets it right: 1 or 0."""
    right = []
    model.eval()
    with regression.validation_set(
        target, name, rank=accelerator.process_index, world_size=accelerator.num_processes
    ) as dataset:
        for batch in dataset:
            x, y = regression.tensors(batch)
            # Without the repeats that fill up the last batch.
            right.append(accelerator.gather_for_metrics(regression.right(model(x)[:, 0], y)))
    model.train()
    return torch.cat(right)


def main() -> None:
    """Train on this rank."""
    given = regression.arguments()
    accelerator = Accelerator()
    dataset = RemoteDataset(
        given.target,
        given.dataset,
        seed=regression.SEED,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        sharding=Sharding(global_batch_size=regression.GLOBAL_BATCH),
    )
    model = regression.make_model()
    model, optimizer = accelerator.prepare(model, regression.make_optimizer(model))
    # It has state_dict() and load_state_dict(), so save_state and load_state take it along.
    accelerator.register_for_checkpointing(dataset)
    if given.checkpoint.exists():
        accelerator.load_state(str(given.checkpoint))
    for batch in regression.batches_until(dataset, given.steps):
        loss = regression.loss_of(model, batch)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        total = accelerator.reduce(loss.detach(), reduction="mean")
        if accelerator.is_main_process:
            regression.report(batch.step, batch.position, total.item())
    if given.validation is not None:
        right = validate(accelerator, model, given.target, given.validation)
        if accelerator.is_main_process:
            regression.report_validation(len(right), right.mean().item())
    accelerator.save_state(str(given.checkpoint))
    dataset.close()
    # The model before the group: see ddp.py.
    del model
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
