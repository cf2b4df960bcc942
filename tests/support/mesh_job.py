"""The ranks of meshes of several shapes, one after another, for tests of what they get."""

from __future__ import annotations

import json
import math
import pickle
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headrace.client import RemoteDataset, Sharding, Slice

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.gang import run_gang

GLOBAL_BATCH = 16
COLUMNS = ("tokens", "labels", "keys")


def states_of(keys: torch.Tensor) -> torch.Tensor:
    """Return ``(..., 4) float64`` that stand for what a model makes of elements."""
    return torch.sin(keys.double()[..., None] * torch.tensor([1.0, 0.7, 0.3, 0.1]).double())


def attention(
    queries: torch.Tensor, at: torch.Tensor, states: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    """Return causal attention of queries at their places over all states at theirs."""
    scores = queries @ states.transpose(1, 2)
    return (
        scores.masked_fill(places[None, None] > at[None, :, None], -torch.inf).softmax(2) @ states
    )


def _gathered(tensor: torch.Tensor, mesh: DeviceMesh) -> list[torch.Tensor]:
    found = [torch.empty_like(tensor) for _ in range(mesh["cp"].size())]
    dist.all_gather(found, tensor.contiguous(), group=mesh["cp"].get_group())
    return found


def _batches(address: str, mesh: DeviceMesh, layout: Any) -> dict[str, Any]:
    """Return what this rank gets, and its attention over its context-parallel peers."""
    cut = Slice(COLUMNS, layout=layout, positions="at", inputs=("tokens",), labels=("labels",))
    dataset = RemoteDataset(
        address,
        "d",
        seed=3,
        epochs=1,
        mesh=mesh,
        stages=[cut],
        sharding=Sharding(global_batch_size=GLOBAL_BATCH, share="auto"),
    )
    found: dict[str, Any] = {"batches": [], "attention": []}
    for batch in dataset:
        found["batches"].append({name: batch[name].numpy().copy() for name in batch})
        states, at = states_of(batch["keys"]), batch["at"][0]
        everywhere = torch.cat(_gathered(states, mesh), 1)
        places = torch.cat(_gathered(at, mesh))
        found["attention"].append(attention(states, at, everywhere, places).numpy())
    found["shared"] = dataset.stats().transport_reason
    dataset.close()
    return found


def run_rank(rank: int, folder: Path, address: str, shapes: list[dict[str, int]]) -> None:
    """Take part in every mesh, and write down what came of it."""
    torch.set_num_threads(1)
    found = []
    for number, shape in enumerate(shapes):
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meet-{number}",
            rank=rank,
            world_size=math.prod(shape.values()),
            timeout=timedelta(seconds=120),
        )
        mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
        found.append(
            {layout: _batches(address, mesh, layout) for layout in ("contiguous", "zigzag")}
        )
        dist.barrier()
        dist.destroy_process_group()
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(found))


def main() -> None:
    """Run all ranks: arguments are a folder to meet in, a server's address, and the shapes."""
    folder, address, text = sys.argv[1:]
    shapes = json.loads(text)
    count = math.prod(shapes[0].values())
    sys.exit(run_gang(count, lambda rank: run_rank(rank, Path(folder), address, shapes)))


if __name__ == "__main__":
    main()
