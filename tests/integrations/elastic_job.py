"""What one worker of torch's elastic agent does in tests: train, save every step, and die.

Its arguments are the address of the server, a folder, and the number of steps. The state that is
saved is a list of what was trained on, so that it says itself what was lost or came twice. In the
folder, ``until`` says how far to train for now, ``kill`` in which step a rank ends itself, once,
and ``starts`` has a line for each start.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headrace.client import RemoteDataset, Sharding
from integrations.line import GLOBAL_BATCH

SEED = 3


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"trained": [], "worlds": [], "place": None}
    found: dict[str, Any] = torch.load(path)
    return found


def _save(state: dict[str, Any], path: Path) -> None:
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def main() -> None:
    """Train from the newest checkpoint, as one of as many workers as there are."""
    address, folder, total = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    saved, kill = folder / "state.pt", folder / "kill"
    state = _load(saved)
    dist.barrier()  # nobody saves before all have loaded
    if dist.get_rank() == 0:
        with (folder / "starts").open("a") as starts:
            starts.write("started\n")
    sharding = Sharding(global_batch_size=GLOBAL_BATCH)
    with RemoteDataset(address, "train", seed=SEED, sharding=sharding) as dataset:
        if state["place"] is not None:
            dataset.load_state_dict(state["place"])
        while len(state["trained"]) < total:
            for batch in dataset:
                if batch.step >= total:
                    break
                while batch.step >= int((folder / "until").read_text()):
                    time.sleep(0.02)
                found: list[Any] = [None] * dist.get_world_size()
                if kill.exists() and kill.read_text() == f"{batch.step} {dist.get_rank()}":
                    kill.unlink()
                    os._exit(9)
                dist.all_gather_object(found, batch["id"].tolist())
                state["trained"].append([each for ids in found for each in ids])
                state["worlds"].append(len(found))
                dataset.committed(batch.step)
                state["place"] = dataset.state_dict()
                if dist.get_rank() == 0:
                    _save(state, saved)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
