"""LitData again, with workers: what it reaches where the training process has other work to do."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.lit import Reader
from benchmarks.peers.samples import Samples

__all__ = ["Reader", "write"]


def write(samples: Samples, folder: Path) -> None:
    """Write nothing: this reads what LitData has written."""
