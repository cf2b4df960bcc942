"""One rank of a training job, as a process.

It trains four epochs, saves by the framework's own checkpoint every three steps, goes on from the
newest, and dies without a word in a step that it is told. Each batch is a line in
``FOLDER/RANK.jsonl``: epoch, step, ids and loss.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib import import_module

import torch

from integrations.degrees.told import Task, Told

JOBS = {
    "accelerate": "accelerates",
    "databricks": "airs",
    "lightning": "lightnings",
    "ray": "rays",
    "torchtitan": "titans",
    "transformers": "trainers",
}
"""The module of each framework, which has a function for each loader."""

STARTING = ("ray",)
"""Those that start the ranks themselves, from one process."""


def main(task: Task, kill: int, environment: dict[str, str]) -> None:
    """Train.

    Args:
        task: What to train, and where.
        kill: The step to die in.
        environment: What a launcher would say.
    """
    os.environ.update(environment)
    rank, ranks = environment["RANK"], int(environment["WORLD_SIZE"])
    output = os.open(task.folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    module = import_module(f"integrations.degrees.{JOBS[task.framework]}")
    train: Callable[[Told], None] = getattr(module, task.loader)
    with (task.folder / f"{rank}.jsonl").open("w", buffering=1) as log:
        train(Told(task.address, task.folder, kill, ranks, log))
