"""What one worker of Ray Train does in tests: train, report every three steps, and die once.

Each batch is a line in ``FOLDER/RANK.jsonl``.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
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
    source = remote(
        told["address"], "train", seed=3, sharding=Sharding(global_batch_size=GLOBAL_BATCH)
    )
    loader, step = trained(source), 0
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
                    _save(loader, model, step, rank)
                if step == told["until"]:
                    break
    loader.close()


def _save(loader: Any, model: torch.nn.Module, step: int, rank: int) -> None:
    with tempfile.TemporaryDirectory() as saved:
        torch.save({"model": model.state_dict(), "step": step}, f"{saved}/state.pt")
        report(loader, {"step": step}, train.Checkpoint(saved) if rank == 0 else None)
