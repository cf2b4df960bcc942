"""Hugging Face Accelerate: model and optimizer are prepared, the dataset is not.

accelerate launch --num_processes 2 --cpu examples/recipes/with_accelerate.py \
    localhost:50051 line accelerate-checkpoint --steps 100

The server splits batches over the ranks; a prepared loader would split them once more.
"""

from __future__ import annotations

import regression
from accelerate import Accelerator

from headrace.client import RemoteDataset


def main() -> None:
    """Train on this rank."""
    given = regression.arguments()
    accelerator = Accelerator()
    dataset = RemoteDataset(
        given.target,
        given.dataset,
        global_batch_size=regression.GLOBAL_BATCH,
        seed=regression.SEED,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
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
    accelerator.save_state(str(given.checkpoint))
    dataset.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
