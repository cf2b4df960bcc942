"""What the recipes train: a line through samples ``x (8,) float32`` and ``y float32``.

Everything that is about a framework stands in the recipe itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from headrace.client import Batch

WIDTH, GLOBAL_BATCH, SEED = 8, 32, 7


@dataclass(frozen=True, slots=True)
class Arguments:
    """What every recipe is called with."""

    target: str
    dataset: str
    checkpoint: Path
    steps: int


def arguments() -> Arguments:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", help="address of a headrace server")
    parser.add_argument("dataset", help="name of the dataset there")
    parser.add_argument("checkpoint", type=Path, help="where to save; gone on from if it is there")
    parser.add_argument("--steps", type=int, required=True, help="step to stop after, from 1")
    return Arguments(**vars(parser.parse_args()))


def make_model() -> nn.Linear:
    """Return the line, the same in every process."""
    torch.manual_seed(SEED)
    return nn.Linear(WIDTH, 1)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with a state of its own, so that a checkpoint has to have it."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss whose mean over the ranks is that of the global batch.

    A sum, because a rank without samples has no mean.
    """
    x, y = batch["x"], batch["y"]
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    return nn.functional.mse_loss(model(x)[:, 0], y, reduction="sum") * batch.sum_scale


def batches_until(dataset: Iterable[Batch], step: int) -> Iterator[Batch]:
    """Yield batches, epoch after epoch, up to the one that makes ``step`` steps."""
    while True:
        for batch in dataset:
            yield batch
            if batch.step + 1 >= step:
                return


def report(step: int, position: int, loss: float) -> None:
    """Print one line of JSON."""
    print(json.dumps({"step": step, "position": position, "loss": round(loss, 5)}), flush=True)
