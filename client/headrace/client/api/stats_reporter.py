"""Log a dataset's statistics at intervals: what is said of them, and when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch.distributed as dist

from headrace.client.api.stats import ClientStats
from headrace.client.api.stats_log import StatsLog
from headrace.client.api.stats_sinks import Sink, sink_named
from headrace.client.api.worst_rank import Worst
from headrace.client.wire.assembler import Mark, header_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Moment:
    """Where an interval starts."""

    at_s: float
    batches: int
    stats: ClientStats


class Reporter:
    """Counts batches, and calls a log when it is due.

    Attributes:
        rank: The rank of the dataset, which may change.
    """

    def __init__(
        self, options: StatsLog, *, rank: int = 0, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Start before the first batch.

        Args:
            options: What to call, and when.
            rank: Of the dataset; that of torch.distributed comes before it.
            now: Seconds of a clock that never goes back.

        Raises:
            ConfigurationError: What draws the run is not installed.
        """
        self._options, self._now, self.rank = options, now, rank
        self._sink, self._worst = _sink_of(options), Worst(options.prefix)
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
            since = self._since = _Moment(now, self._batches, stats())
        steps, seconds = self._options.every_steps, self._options.every_s
        is_due = steps is not None and self._batches - self._logged_batches >= steps
        if is_due or (seconds is not None and now - since.at_s >= seconds):
            found = stats()
            numbers = self._numbers(mark, found, since, now)
            self._logged_batches = self._batches
            self._since = _Moment(now, self._batches, found)
            self._hand_over(numbers)

    def _numbers(
        self, mark: Mark | None, stats: ClientStats, since: _Moment, now: float
    ) -> dict[str, float]:
        found: dict[str, float] = {}
        passed_s = now - since.at_s
        if passed_s > 0:
            share = min(1.0, (stats.waited_s - since.stats.waited_s) / passed_s)
            found |= {**self._worst.numbers(share, stats.culprit), "waited_share": share}
            grown = stats.waited_on - since.stats.waited_on
            found |= {
                f"waited_share_on/{hop}": min(1.0, max(0.0, seconds) / passed_s)
                for hop, seconds in grown._asdict().items()
            }
            found["batches_per_s"] = (self._batches - since.batches) / passed_s
        found |= {"batches": self._batches, **stats.as_numbers()}
        if mark is not None:
            header = header_of(mark)
            found |= {"step": header.step, "epoch": header.epoch}
        return found

    def _hand_over(self, found: Mapping[str, float]) -> None:
        prefix = self._options.prefix
        if not callable(self._options.log) and self._process_rank():
            return
        numbers = {f"{prefix}/{name}": value for name, value in found.items()}
        try:
            self._sink(numbers, int(found.get("step", self._batches)))
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

    def _process_rank(self) -> int:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank()
        return self.rank


def _sink_of(options: StatsLog) -> Sink:
    log = options.log
    return (lambda found, _: log(found)) if callable(log) else sink_named(log)
