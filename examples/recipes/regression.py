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

from headrace.client import Batch, RemoteDataset

WIDTH, GLOBAL_BATCH, SEED = 8, 32, 7
VALIDATION_BATCH = 16
"""Samples of a rank; all ranks need the same, so that frameworks can gather results."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What every recipe is called with."""

    target: str
    dataset: str
    checkpoint: Path
    steps: int
    validation: str | None


def arguments() -> Arguments:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", help="address of a headrace server")
    parser.add_argument("dataset", help="name of the dataset there")
    parser.add_argument("checkpoint", type=Path, help="where to save; gone on from if it is there")
    parser.add_argument("--steps", type=int, required=True, help="step to stop after, from 1")
    parser.add_argument("--validation", help="name of a dataset to validate on at the end")
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
    x, y = tensors(batch)
    return nn.functional.mse_loss(model(x)[:, 0], y, reduction="sum") * batch.sum_scale


def tensors(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples ``(samples, 8) float32`` and what to find, ``(samples,) float32``."""
    return batch["x"], batch["y"]


def validation_set(target: str, name: str, *, rank: int, world_size: int) -> RemoteDataset:
    """Return a dataset whose every loop has all samples, in batches of one size on every rank.

    The last batch is filled up with repeats. They come after all samples if the ranks' rows are
    joined in the order of ranks, so frameworks that gather a batch know which rows to drop.
    """
    return RemoteDataset(
        target,
        name,
        batch_size=VALIDATION_BATCH,
        shuffle=False,
        end="pad",
        epochs="same",
        rank=rank,
        world_size=world_size,
    )


def right(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return 1 for each sample ``(samples,)`` that the line comes close to, else 0."""
    return ((prediction - y).abs() < 1).float()


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


def report_validation(count: int, share: float) -> None:
    """Print one line of JSON."""
    print(json.dumps({"validated": count, "right": round(share, 4)}), flush=True)
