"""What one worker of Ray Train does in tests: train, report every three steps, and die once.

Each batch is a line in ``FOLDER/RANK.jsonl``.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ray import train

from headrace.client import Sharding
from headrace.integrations.ray import remote, report, trained
from integrations.line import GLOBAL_BATCH

EVERY = 3


def work(told: dict[str, Any]) -> None:
    """Train from the newest checkpoint.

    Args:
        told: The server's ``address``, a ``folder``, the last step ``until``, and the step to
            ``kill`` the process in, if it is a run's first.
    """
    rank = train.get_context().get_world_rank()
    loader, step = trained(_source(told)), 0
    model = torch.nn.Linear(8, 1)
    if (found := train.get_checkpoint()) is not None:
        with found.as_directory() as saved:
            state = torch.load(f"{saved}/state.pt")
        model.load_state_dict(state["model"])
        step = state["step"]
    killed = Path(told["folder"], f"{rank}.killed")
    with Path(told["folder"], f"{rank}.jsonl").open("a", buffering=1) as log:
        while step < told["until"]:
            for batch in loader:
                if step == told["kill"] and not killed.exists():
                    killed.touch()
                    os.kill(os.getpid(), 9)
                log.write(json.dumps([step, batch["id"].tolist()]) + "\n")
                step += 1
                if step % EVERY == 0:
                    _save(loader, {"model": model.state_dict(), "step": step}, step, rank)
                if step == told["until"]:
                    break
    loader.close()


def work_elastically(told: dict[str, Any]) -> None:
    """Train from the newest checkpoint, which lists what was trained on, and save every step.

    Args:
        told: The server's ``address``, and a ``folder``: in it ``until`` says how far to train, and
            ``worlds`` has the number of workers of each step.
    """
    folder, source = Path(told["folder"]), _source(told)
    loader = trained(source)
    state: dict[str, Any] = {"trained": [], "worlds": []}
    if (found := train.get_checkpoint()) is not None:
        with found.as_directory() as saved:
            state = torch.load(f"{saved}/state.pt")
    while True:
        for batch in loader:
            parts: list[Any] = [None] * dist.get_world_size()
            is_last = len(state["trained"]) >= int((folder / "until").read_text())
            dist.all_gather_object(parts, (is_last, batch["id"].tolist()))
            state["trained"].append([each for _, ids in parts for each in ids])
            state["worlds"].append(len(parts))
            if dist.get_rank() == 0:
                with (folder / "worlds").open("a") as worlds:
                    worlds.write(f"{len(parts)}\n")
            _save(loader, state, len(state["trained"]), dist.get_rank())
            # Ray looks after its workers every few seconds.
            time.sleep(0.2)
            if any(last for last, _ in parts):
                loader.close()
                return


def _source(told: dict[str, Any]) -> Any:
    sharding = Sharding(global_batch_size=GLOBAL_BATCH)
    return remote(told["address"], "train", seed=3, sharding=sharding)


def _save(loader: Any, state: dict[str, Any], step: int, rank: int) -> None:
    with tempfile.TemporaryDirectory() as saved:
        torch.save(state, f"{saved}/state.pt")
        report(loader, {"step": step}, train.Checkpoint(saved) if rank == 0 else None)
