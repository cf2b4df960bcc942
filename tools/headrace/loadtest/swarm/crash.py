"""Decide when to kill all trainers of a swarm, and what their last checkpoint saved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.loadtest.swarm.rank import RankResult, RankSeat
from headrace.loadtest.swarm.records import Recorder, Records
from headrace.loadtest.swarm.spec import SwarmSpec
from headrace.loadtest.swarm.worker import News, ProcessResults, Tick


class Crash:
    """Follow a generation until the step at which it is killed."""

    def __init__(self, step: int, first_step: int, seats: Sequence[RankSeat]) -> None:
        """Start to follow a generation.

        Args:
            step: The step at which to kill, once any rank has reached it.
            first_step: The first step of the generation.
            seats: Its ranks.
        """
        self._step = step
        self._first_step = first_step
        self._seats = tuple(seats)
        self._records: dict[RankSeat, list[Records]] = {seat: [] for seat in seats}
        self._tokens: dict[int, dict[int, bytes]] = {seat.job: {} for seat in seats}

    def note(self, message: Tick | ProcessResults) -> None:
        """Process a message from a process of the swarm."""
        if isinstance(message, ProcessResults):
            for result in message.results:
                self._records[result.seat] = [result.records]
            return
        for news in message.news:
            self._add(news)

    def is_due(self) -> bool:
        """Return whether the step has been reached."""
        return max(self._reached(seat) for seat in self._seats) >= self._step

    def checkpoint(self, spec: SwarmSpec) -> tuple[int, list[bytes | None], list[RankResult]]:
        """Return the step of a checkpoint, its tokens by job, and the results before it.

        It is the last one that all ranks have passed, and no later than the step of the crash.
        """
        passed = min(self._step, *(self._reached(seat) for seat in self._seats))
        saved = set.intersection(*(set(tokens) for tokens in self._tokens.values()))
        step = max((step for step in saved if step <= passed), default=self._first_step)
        tokens = [self._tokens[job].get(step) for job in sorted(self._tokens)]
        results = [
            RankResult(
                seat, _before(spec, self._records_of(seat), step), last_token=tokens[seat.job]
            )
            for seat in self._seats
        ]
        return step, tokens, results

    def _add(self, news: News) -> None:
        self._records[news.seat].append(news.records)
        if news.seat.rank == 0:
            self._tokens[news.seat.job].update(news.checkpoints)

    def _reached(self, seat: RankSeat) -> int:
        return self._first_step + sum(part.size for part in self._records[seat])

    def _records_of(self, seat: RankSeat) -> Records:
        return np.concatenate([Recorder().records(), *self._records[seat]])


def _before(spec: SwarmSpec, records: Records, step: int) -> Records:
    steps = records["epoch"] * spec.plan.batch_count
    steps += records["position"] // spec.global_batch_size
    kept: Records = records[steps < step]
    return kept
