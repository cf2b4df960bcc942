"""Fully sharded data parallel (FSDP2); on the CPU here, on GPUs the same.

torchrun --nproc-per-node 2 examples/recipes/fsdp.py localhost:50051 line fsdp.pt --steps 100
"""

from __future__ import annotations

import regression
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from headrace.client import RemoteDataset, Sharding

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def main() -> None:
    """Train on this rank."""
    given = regression.arguments()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    dataset = RemoteDataset(
        given.target,
        given.dataset,
        seed=regression.SEED,
        mesh=mesh,
        sharding=Sharding(global_batch_size=regression.GLOBAL_BATCH),
    )
    model = regression.make_model()
    fully_shard(model, mesh=mesh)
    optimizer = regression.make_optimizer(model)
    if given.checkpoint.exists():
        saved = torch.load(given.checkpoint)
        dataset.load_state_dict(saved["dataset"])
        set_state_dict(
            model,
            optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
            options=WHOLE,
        )
    for batch in regression.batches_until(dataset, given.steps):
        loss = regression.loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            regression.report(batch.step, batch.position, loss.item() / dist.get_world_size())
    weights, moments = get_state_dict(model, optimizer, options=WHOLE)
    if dist.get_rank() == 0:
        state = {"model": weights, "optimizer": moments, "dataset": dataset.state_dict()}
        torch.save(state, given.checkpoint)
    dataset.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
