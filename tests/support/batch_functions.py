"""What tests of loaders share: a function that travels to workers, and their end."""

from __future__ import annotations

import multiprocessing

import torch

from headrace.client import Batch


def numbers_of(batch: Batch) -> list[int]:
    """What the column ``number`` holds."""
    values = batch["number"]
    assert isinstance(values, torch.Tensor)
    return [int(value) for value in values]


def end_workers() -> None:
    """End the workers of a loop that failed: torch would wait 5 s for them, whenever freed."""
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
