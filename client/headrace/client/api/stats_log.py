"""Send a dataset's statistics to what draws a run, or to any function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from headrace.arguments import number, shown, text, whole_or_none
from headrace.client.api.stats_sinks import SINKS
from headrace.errors import BadArgumentError

_EVERY_S = 30.0
"""The default. Arbitrary: a few points per minute, and one call per some hundred steps."""

Log = Callable[[dict[str, float]], Any] | Literal["mlflow", "opentelemetry", "tensorboard", "wandb"]
"""What gets statistics: a function, or what draws a run, by name."""


@dataclass(frozen=True, slots=True)
class StatsLog:
    """Call a function with the statistics of a dataset at intervals.

    The loop's thread calls it between two batches, with a dictionary of numbers whose names start
    with ``prefix/``. If it raises, the error is logged once, and training continues.

    Attributes:
        log: ``"mlflow"``, ``"wandb"``, ``"tensorboard"`` or ``"opentelemetry"``, where the first
            rank logs; or a function such as ``mlflow.log_metrics``, which each rank calls.
        every_steps: After how many batches of this rank to call it, >= 1.
        every_s: After how many seconds, > 0; with both, whichever comes first. Without either,
            after 30 s.
        prefix: Prefix of the names, to tell datasets apart.
    """

    log: Log
    every_steps: int | None = None
    every_s: float | None = None
    prefix: str = "headrace"

    def __post_init__(self) -> None:
        if not callable(self.log) and self.log not in [*SINKS]:
            raise BadArgumentError(
                f"log is {shown(self.log)}, of type {type(self.log).__name__}; expected "
                f"{', '.join(map(repr, SINKS))}, or a function of a dictionary, such as "
                "mlflow.log_metrics",
                field="log",
            )
        steps = whole_or_none("every_steps", self.every_steps, low=1)
        seconds = self.every_s
        if seconds is not None:
            seconds = number("every_s", seconds, above=0)
        elif steps is None:
            seconds = _EVERY_S
        text("prefix", self.prefix)
        object.__setattr__(self, "every_steps", steps)
        object.__setattr__(self, "every_s", seconds)
