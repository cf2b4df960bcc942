"""Ray Train: each worker reads its own share, one worker's state is all that a checkpoint needs.

python examples/recipes/with_ray_train.py localhost:50051 line ray.pt --steps 100
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import regression
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from torch import distributed as dist

from headrace.client import RemoteDataset, Sharding


def train_on_worker(given: regression.Arguments) -> None:
    """Train on this rank."""
    context = train.get_context()
    dataset = RemoteDataset(
        given.target,
        given.dataset,
        seed=regression.SEED,
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        sharding=Sharding(global_batch_size=regression.GLOBAL_BATCH),
    )
    line = regression.make_model()
    if given.checkpoint.exists():
        saved = torch.load(given.checkpoint)
        line.load_state_dict(saved["model"])
        dataset.load_state_dict(saved["dataset"])
    model = prepare_model(line)
    optimizer = regression.make_optimizer(model)
    if given.checkpoint.exists():
        optimizer.load_state_dict(saved["optimizer"])
    for batch in regression.batches_until(dataset, given.steps):
        loss = regression.loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.SUM)
        if context.get_world_rank() == 0:
            regression.report(batch.step, batch.position, loss.item() / context.get_world_size())
    if context.get_world_rank() == 0:
        state = {"model": line.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "dataset": dataset.state_dict()}, given.checkpoint)
    dataset.close()


def main() -> None:
    """Start two workers."""
    given = regression.arguments()
    with tempfile.TemporaryDirectory() as results:
        TorchTrainer(
            train_on_worker,
            train_loop_config=given,
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=str(Path(results))),
        ).fit()


if __name__ == "__main__":
    main()
