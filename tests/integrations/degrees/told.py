"""What the job of a framework is told, and what all of them share."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from headrace.client import Sharding
from integrations.line import GLOBAL_BATCH, STEPS, line

EPOCHS, EVERY = 4, 3
"""How long a job trains, and after how many steps it saves."""

LAST = EPOCHS * STEPS
SHARDING = Sharding(global_batch_size=GLOBAL_BATCH)


@dataclass(frozen=True, slots=True)
class Task:
    """What all ranks do.

    Attributes:
        framework: One of those in `integrations.degrees.job`.
        loader: A function of its module: ``headrace``, or one of the framework's own.
        address: Of the server.
        folder: For checkpoints, and for what ranks print and see.
    """

    framework: str
    loader: str
    address: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank is told.

    Attributes:
        address: Of the server.
        folder: For checkpoints.
        kill: The step to die in.
        ranks: How many there are.
        log: Gets a line for each batch; None in a process that starts ranks.
    """

    address: str
    folder: Path
    kill: int
    ranks: int
    log: IO[str] | None

    @property
    def batch_size(self) -> int:
        """Samples of one rank."""
        return GLOBAL_BATCH // self.ranks

    def note(self, epoch: int, step: int, ids: Any, loss: float) -> None:
        """Write a batch down, or die."""
        if step == self.kill:
            os.kill(os.getpid(), 9)
        assert self.log is not None
        self.log.write(json.dumps([epoch, step, ids.tolist(), loss]) + "\n")

    def newest(self, pattern: str) -> tuple[Path | None, int]:
        """Return the newest checkpoint and its step."""
        found = {int(path.stem.split("-")[-1]): path for path in self.folder.glob(pattern)}
        step = max(found, default=0)
        return found.get(step), step


def leave() -> None:
    """End this rank while its model lives.

    Torch 2.13 waits for ever, now and then, where a model of DistributedDataParallel is collected
    after the process group: it has the interpreter's lock, which a thread of gloo wants.
    """
    torch.distributed.barrier()
    os._exit(0)


def rows() -> Any:
    """Return the samples of whole global batches, for a framework's own loader.

    A list, which loaders take and their types do not.
    """
    table = line(GLOBAL_BATCH * STEPS)
    columns = {name: torch.tensor(table[name].to_pylist()) for name in table.column_names}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(table))]


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    """Return how far a line is from its samples."""
    return torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
