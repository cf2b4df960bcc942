"""Who runs a loop: frameworks that are loaded, and the frames below the present one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FrameType

LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
ACCELERATE = "accelerate.data_loader"
FRAMEWORKS = frozenset(
    {ACCELERATE, *(f"{package}.utilities.combined_loader" for package in LIGHTNING)}
)
"""Modules of which one is loaded where a framework may run a loop."""


def callers() -> Iterator[tuple[str, FrameType]]:
    """Yield the frames of this thread from the caller outwards, each with its module's name."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame
        frame = frame.f_back
