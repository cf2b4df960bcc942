r"""DistributedDataParallel; gloo here, nccl on GPUs.

torchrun --nproc-per-node 2 examples/recipes/ddp.py \
    localhost:50051 line ddp.pt --steps 100 --validation line

Start it again with more steps, and on any number of processes, and it continues where it was.
"""

from __future__ import annotations

import regression
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace.client import RemoteDataset, Sharding


@torch.no_grad()
def validate(model: nn.Module, target: str, name: str) -> tuple[int, float]:
    """Return the number of samples over all ranks, and the share that the model gets right."""
    total = torch.zeros(2)
    model.eval()
    with regression.validation_set(
        target, name, rank=dist.get_rank(), world_size=dist.get_world_size()
    ) as dataset:
        for batch in dataset:
            x, y = regression.tensors(batch)
            right = regression.right(model(x)[:, 0], y)[~batch.is_pad]
            total += torch.tensor([len(right), right.sum()])
    model.train()
    dist.all_reduce(total)
    return int(total[0]), float(total[1] / total[0])


def main() -> None:
    """Train on this rank."""
    given = regression.arguments()
    dist.init_process_group("gloo")
    # Rank and world size are those of torch.distributed.
    dataset = RemoteDataset(
        given.target,
        given.dataset,
        seed=regression.SEED,
        sharding=Sharding(global_batch_size=regression.GLOBAL_BATCH),
    )
    model = DistributedDataParallel(regression.make_model())
    optimizer = regression.make_optimizer(model)
    if given.checkpoint.exists():
        saved = torch.load(given.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["dataset"])
    for batch in regression.batches_until(dataset, given.steps):
        loss = regression.loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            regression.report(batch.step, batch.position, loss.item() / dist.get_world_size())
    if given.validation is not None:
        count, share = validate(model.module, given.target, given.validation)
        if dist.get_rank() == 0:
            regression.report_validation(count, share)
    if dist.get_rank() == 0:
        saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**saved, "dataset": dataset.state_dict()}, given.checkpoint)
    dataset.close()
    # Whoever lets go of the group last waits for its threads: a model would with Python's lock
    # held, which a thread of gloo may want (github.com/pytorch/pytorch/issues/56297).
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
