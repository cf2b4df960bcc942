"""A rank that runs the loop of docs/validation.md, for tests of the gradients that come of it.

Apart from the test, so that a rank loads no more than it needs.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace.client import Batch, RemoteDataset, Sharding

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.gang import run_gang

DOCS = Path(__file__).parents[2] / "docs" / "validation.md"
GLOBAL_BATCH = 8
WIDTH = 3


def make_model() -> nn.Module:
    """Two layers in double precision, the same in every process."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()


def gradient_of(model: nn.Module) -> list[float]:
    """The gradients of all parameters, one after another."""
    found: list[float] = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        found += parameter.grad.flatten().tolist()
    return found


class _Recorder:
    """Stands in for the optimizer, and notes the gradients that a step would use."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.gradients: list[list[float]] = []

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""
        self.model.zero_grad()

    def step(self) -> None:
        """Note those of this one."""
        self.gradients.append(gradient_of(self.model))


def _batches(dataset: RemoteDataset, counts: list[int]) -> Iterator[Batch]:
    for batch in dataset:
        counts.append(batch.sample_count)
        yield batch


def _read(
    address: str,
    model: nn.Module,
    *,
    position: int,
    rank: int,
    world_size: int,
    **options: Any,
) -> tuple[list[list[float]], list[int]]:
    """Run the loop over the rest of an epoch; return each step's gradient, and its samples."""
    dataset = RemoteDataset(
        address,
        "d",
        rank=rank,
        world_size=world_size,
        sharding=Sharding(global_batch_size=GLOBAL_BATCH),
        **options,
    )
    dataset.seek(0, position)
    optimizer, counts = _Recorder(model), list[int]()
    exec(  # noqa: S102 - the loop as it stands in the documentation
        _loop(),
        {
            "dataset": _batches(dataset, counts),
            "model": model,
            "loss_function": nn.MSELoss(reduction="none"),
            "optimizer": optimizer,
        },
    )
    dataset.close()
    return optimizer.gradients, counts


def _loop() -> str:
    """The loop that the documentation shows."""
    section = DOCS.read_text().partition("\n## Gradients over ranks\n")[2]
    (code, *_) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return textwrap.dedent(code)


def run_rank(rank: int, folder: Path, address: str, cases: list[dict[str, Any]]) -> None:
    """Take part in every case that has room for this rank, and write down what came of it."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=_rank_count(cases),
        timeout=timedelta(seconds=120),
    )
    groups = {size: dist.new_group(list(range(size))) for size in {c["world_size"] for c in cases}}
    found = {}
    for number, case in enumerate(cases):
        if rank < case["world_size"]:
            model = DistributedDataParallel(make_model(), process_group=groups[case["world_size"]])
            found[number] = _read(address, model, rank=rank, **case)
            del model
    (folder / f"{rank}.json").write_text(json.dumps(found))


def _rank_count(cases: list[dict[str, Any]]) -> int:
    return max(int(case["world_size"]) for case in cases)


def main() -> None:
    """Run all ranks: arguments are a folder to meet in, a server's address, and the cases."""
    folder, address, text = sys.argv[1:]
    cases = json.loads(text)
    sys.exit(
        run_gang(_rank_count(cases), lambda rank: run_rank(rank, Path(folder), address, cases))
    )


if __name__ == "__main__":
    main()
