"""Send a dataset's statistics to MLflow, Weights & Biases, or any other function."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.arguments import number, shown, text, whole_or_none
from headrace.client.api.stats import ClientStats
from headrace.client.wire.assembler import Mark, header_of
from headrace.errors import BadArgumentError

_log = logging.getLogger(__name__)

_EVERY_S = 30.0
"""The default. Arbitrary: a few points per minute, and one call per some hundred steps."""


@dataclass(frozen=True, slots=True)
class StatsLog:
    """Call a function with the statistics of a dataset at intervals.

    The loop's thread calls it between two batches, with a dictionary of numbers whose names start
    with ``prefix/``. If it raises, the error is logged once, and training continues.

    Attributes:
        log: A function such as ``wandb.log`` or ``mlflow.log_metrics``.
        every_steps: After how many batches of this rank to call it, >= 1.
        every_s: After how many seconds, > 0; with both, whichever comes first. Without either,
            after 30 s.
        prefix: Prefix of the names, to tell datasets apart.
    """

    log: Callable[[dict[str, float]], Any]
    every_steps: int | None = None
    every_s: float | None = None
    prefix: str = "headrace"

    def __post_init__(self) -> None:
        if not callable(self.log):
            raise BadArgumentError(
                f"log is {shown(self.log)}, of type {type(self.log).__name__}; expected a function "
                "of a dictionary, such as wandb.log or mlflow.log_metrics",
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


@dataclass(frozen=True, slots=True)
class _Moment:
    """Where an interval starts."""

    at_s: float
    batches: int
    waited_s: float


class Reporter:
    """Counts batches, and calls a log when it is due."""

    def __init__(self, options: StatsLog, *, now: Callable[[], float] = time.monotonic) -> None:
        """Start before the first batch.

        Args:
            options: What to call, and when.
            now: Seconds of a clock that never goes back.
        """
        self._options, self._now = options, now
        self._batches = self._logged_batches = 0
        self._since: _Moment | None = None
        self._has_failed = False

    def note(self, mark: Mark | None, stats: Callable[[], ClientStats]) -> None:
        """Note that the loop is done with a batch, and call the log if it is time.

        Args:
            mark: The batch's; None where the dataset was moved since.
            stats: Returns the statistics.
        """
        now = self._now()
        self._batches += 1
        since = self._since
        if since is None:
            # A rate needs an earlier batch.
            since = self._since = _Moment(now, self._batches, stats().waited_s)
        steps, seconds = self._options.every_steps, self._options.every_s
        is_due = steps is not None and self._batches - self._logged_batches >= steps
        if is_due or (seconds is not None and now - since.at_s >= seconds):
            found = stats()
            numbers = self._numbers(mark, found, since, now)
            self._logged_batches = self._batches
            self._since = _Moment(now, self._batches, found.waited_s)
            self._hand_over(numbers)

    def _numbers(
        self, mark: Mark | None, stats: ClientStats, since: _Moment, now: float
    ) -> dict[str, float]:
        found: dict[str, float] = {"batches": self._batches, **stats.as_numbers()}
        passed_s = now - since.at_s
        if passed_s > 0:
            found["batches_per_s"] = (self._batches - since.batches) / passed_s
            found["waited_share"] = min(1.0, (stats.waited_s - since.waited_s) / passed_s)
        if mark is not None:
            header = header_of(mark)
            found |= {"step": header.step, "epoch": header.epoch}
        return found

    def _hand_over(self, found: Mapping[str, float]) -> None:
        prefix = self._options.prefix
        try:
            self._options.log({f"{prefix}/{name}": value for name, value in found.items()})
        except Exception as error:  # noqa: BLE001 - whatever a stranger's function does, training goes on
            if not self._has_failed:
                self._has_failed = True
                _log.warning(
                    "the function given to log_stats() failed (%s: %s); training continues, the "
                    "function is called again, and further failures are not logged",
                    type(error).__name__,
                    error,
                    exc_info=error,
                )
