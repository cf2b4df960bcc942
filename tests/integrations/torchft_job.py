"""What one replica of torchft does in tests: train, log what it trains on, and die when told.

Its arguments are the addresses of the lighthouse and of the server, a folder, the number of the
replica, whether quorums are ``async`` or ``sync``, and perhaps the first step to die in and the
point. The file ``until`` says how many steps to train. Each try of a step is a line in
``FOLDER/REPLICA.jsonl``, written before it may be committed; a commit is another.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

from headrace.client import RemoteDataset, Sharding
from headrace.integrations.torchft import StepBatches
from integrations.line import GLOBAL_BATCH

POINTS = ("quorum", "batch", "gradient", "commit")
SEED = 3
_STEP_S = 0.1
"""Steps take a while, so that a run is not over before a replica is back."""


def _die(point: str, step: int, at: list[str]) -> None:
    if at and step >= int(at[0]) and point == at[1]:
        os._exit(9)


def _train(manager: Any, batches: Any, model: Any, log: Any, at: list[str]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while manager.current_step() < int(Path(log.name).with_name("until").read_text()):
        time.sleep(_STEP_S)
        manager.start_quorum()
        optimizer.zero_grad()
        _die("quorum", manager.current_step(), at)
        batch = next(batches)
        step = manager.current_step()
        _die("batch", step, at)
        tried = {"step": step, "quorum": manager._quorum_id, "count": manager.num_participants()}
        who = {"rank": manager.participating_rank(), "ids": batch["id"].tolist()}
        log.write(json.dumps({**tried, **who}) + "\n")
        loss = torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
        (loss * batch.loss_scale).backward()
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()
        _die("gradient", step, at)
        if manager.should_commit():
            optimizer.step()
            log.write(json.dumps({**tried, "committed": True}) + "\n")
            _die("commit", step, at)


def main() -> None:
    """Train until all steps are committed."""
    lighthouse, address, folder, replica, kind, *at = sys.argv[1:]
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    store = dist.TCPStore(  # type: ignore[attr-defined] # torch leaves it out of its stubs
        "localhost", 0, is_master=True, wait_for_workers=False
    )
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=2,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        use_async_quorum=kind == "async",
        init_sync=kind == "sync",
        timeout=timedelta(seconds=10),
        replica_id=f"replica_{replica}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        hostname="localhost",
    )
    dataset = RemoteDataset(
        address,
        "train",
        seed=SEED,
        rank=0,
        world_size=1,
        sharding=Sharding(global_batch_size=GLOBAL_BATCH),
    )
    with Path(folder, f"{replica}.jsonl").open("a", buffering=1) as log, dataset:
        _train(manager, StepBatches(dataset, manager), model, log, at)
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    main()
