"""Run the ranks of one process of the swarm.

Contract of `work`:

1. While ranks run, the process sends a `Tick` to the coordinator every `TICK_S`.
2. When all ranks have ended, it sends their results as one `ProcessResults`, and ends with 0.
3. When the coordinator requests it or is gone, the ranks are stopped, and 2 follows.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection

from headrace.loadtest.swarm.rank import RankResult, RankSeat, Tally, run_rank
from headrace.loadtest.swarm.records import Records
from headrace.loadtest.swarm.spec import Generation, SwarmSpec

TICK_S = 0.5
"""Arbitrary: often enough for a live display."""


@dataclass(frozen=True, slots=True)
class News:
    """What a rank has read since the last tick."""

    seat: RankSeat
    records: Records
    checkpoints: dict[int, bytes]


@dataclass(frozen=True, slots=True)
class Tick:
    """What the ranks of a process have read so far, with the news if the run has crashes."""

    batches: int
    samples: int
    payload_bytes: int
    waited_s: float
    news: tuple[News, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessResults:
    """The results of the ranks of a process."""

    results: tuple[RankResult, ...]


def work(
    spec: SwarmSpec, generation: Generation, seats: Sequence[RankSeat], connection: Connection
) -> None:
    """Run ranks in threads, as the contract of this module says; the entry point of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator handles Ctrl-C
    # Failures are counted by reason; a line for each of hundreds of ranks would hide the report.
    logging.getLogger("headrace.client").setLevel(logging.ERROR)
    stop = threading.Event()
    tallies = [Tally() for _ in seats]
    with ThreadPoolExecutor(len(seats), thread_name_prefix="headrace-rank") as pool:
        ranks = [
            pool.submit(run_rank, spec, generation, seat, tally=tally, stop=stop)
            for seat, tally in zip(seats, tallies, strict=True)
        ]
        _report(ranks, _Reporter(seats, tallies, with_news=bool(spec.crashes)), connection, stop)
    with contextlib.suppress(OSError):  # the coordinator no longer needs results
        connection.send(ProcessResults(tuple(rank.result() for rank in ranks)))


def _report(
    ranks: Sequence[Future[RankResult]],
    reporter: _Reporter,
    connection: Connection,
    stop: threading.Event,
) -> None:
    while wait(ranks, timeout=TICK_S).not_done:
        try:
            connection.send(reporter.tick())
            must_stop = connection.poll()
        except OSError:
            must_stop = True
        if must_stop:
            stop.set()
            return


class _Reporter:
    """Make ticks with what is new since the last one."""

    def __init__(
        self, seats: Sequence[RankSeat], tallies: Sequence[Tally], *, with_news: bool
    ) -> None:
        self._ranks = list(zip(seats, tallies, strict=True))
        self._sent = [0] * len(self._ranks)
        self._with_news = with_news

    def tick(self) -> Tick:
        tallies = [tally for _, tally in self._ranks]
        return Tick(
            batches=sum(tally.batches for tally in tallies),
            samples=sum(tally.samples for tally in tallies),
            payload_bytes=sum(tally.payload_bytes for tally in tallies),
            waited_s=sum(tally.waited_s for tally in tallies),
            news=tuple(self._news()) if self._with_news else (),
        )

    def _news(self) -> Iterator[News]:
        for number, (seat, tally) in enumerate(self._ranks):
            records = tally.recorder.records(self._sent[number])
            self._sent[number] += records.size
            yield News(seat, records, dict(tally.checkpoints))
