"""torchtitan's loader class and checkpoints in a bare loop, since its Trainer needs CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import torch
from torch import distributed
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config import JobConfig

from headrace.integrations.torchtitan import remote, trained
from integrations.degrees.told import EVERY, LAST, Told, leave, loss_of, rows
from integrations.line import GLOBAL_BATCH, STEPS


def headrace(told: Told) -> None:
    """Read from a server."""
    config, ranks = _begun(told)
    build = trained(remote(told.address, "train", seed=3), inputs="x", labels="id")
    _train(told, config, build(**ranks, job_config=config))


def own(told: Told) -> None:
    """Read by torchtitan's loader."""
    config, ranks = _begun(told)
    mine = [({"input": row["x"]}, row["id"]) for row in rows()[ranks["dp_rank"] :: told.ranks]]
    loader = ParallelAwareDataloader(mine, **ranks, batch_size=told.batch_size, shuffle=True)
    _train(told, config, loader)


def _begun(told: Told) -> tuple[Any, dict[str, int]]:
    distributed.init_process_group("gloo")
    config = JobConfig()
    config.training.local_batch_size = told.batch_size
    config.training.global_batch_size = GLOBAL_BATCH
    config.training.steps = LAST
    config.checkpoint.enable = True
    config.checkpoint.interval = EVERY
    return config, {"dp_rank": distributed.get_rank(), "dp_world_size": told.ranks}


def _train(told: Told, config: Any, loader: Any) -> None:
    model = torch.nn.Linear(8, 1)
    optimizers = OptimizersContainer([model], torch.optim.AdamW, {"lr": 0.01})
    schedulers = build_lr_schedulers(optimizers, config.lr_scheduler, LAST)
    checkpoints = CheckpointManager(
        loader,
        [model],
        optimizers,
        schedulers,
        {},
        config.checkpoint,
        sd_adapter=None,
        base_folder=str(told.folder),
    )
    checkpoints.load()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    start = schedulers.schedulers[0].last_epoch
    for step, (inputs, ids) in zip(range(start, LAST), _batches(loader), strict=False):
        x = inputs["input"]
        # The loader has two columns, and this is what the third one holds.
        loss = loss_of(parallel, {"x": x, "y": x @ torch.arange(8.0)})
        told.note(step // STEPS, step, ids, loss.item())
        optimizers.zero_grad()
        loss.backward()
        optimizers.step()
        schedulers.step()
        checkpoints.save(step + 1)
    leave()


def _batches(loader: Any) -> Iterator[Any]:
    """Yield epoch after epoch, also of a loader that ends with one."""
    return chain.from_iterable(repeat(loader))
