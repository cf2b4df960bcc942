"""One rank of a training job, as a process.

It trains four epochs, saves by the framework's own checkpoint every three steps, goes on from the
newest, and dies without a word in step KILL. Each batch is a line in ``FOLDER/RANK.jsonl``.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headrace.client import Sharding
from integrations.line import GLOBAL_BATCH, STEPS

EPOCHS, EVERY = 4, 3
Note = Callable[[int, Any, float], None]


def main(framework: str, address: str, folder: str, kill: int, told: dict[str, str]) -> None:
    """Train.

    Args:
        framework: Of `JOBS`.
        address: Of the server.
        folder: For checkpoints, and for what this rank prints and sees.
        kill: The step to die in.
        told: What a launcher would say in the environment.
    """
    os.environ.update(told)
    output = os.open(Path(folder, f"{told['RANK']}.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with Path(folder, f"{os.environ['RANK']}.jsonl").open("a", buffering=1) as log:

        def note(step: int, ids: Any, loss: float) -> None:
            if step == kill:
                os.kill(os.getpid(), 9)
            log.write(json.dumps([step, ids.tolist(), loss]) + "\n")

        JOBS[framework](address, Path(folder), note)


def _newest(folder: Path, pattern: str) -> Path | None:
    found = sorted(folder.glob(pattern), key=lambda path: int(path.stem.split("-")[-1]))
    return found[-1] if found else None


def _accelerate(address: str, folder: Path, note: Note) -> None:
    from accelerate import Accelerator

    from headrace.integrations.accelerate import remote, trained

    accelerator = Accelerator(cpu=True)
    source = remote(address, "train", seed=3, sharding=Sharding(global_batch_size=GLOBAL_BATCH))
    loader = trained(accelerator, source)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    found, step = _newest(folder, "saved-*"), 0
    if found is not None:
        accelerator.load_state(str(found))
        step = int(found.name.split("-")[1])
    while step < EPOCHS * STEPS:
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])  # type: ignore[arg-type] # a tensor
            note(step, batch["id"], loss.item())
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                accelerator.save_state(str(folder / f"saved-{step}"))
    accelerator.end_training()


JOBS = {"accelerate": _accelerate}
