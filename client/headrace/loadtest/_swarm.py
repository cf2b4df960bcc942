"""Run a swarm: processes full of ranks, generation after generation.

Contract of `run_swarm`:

1. Success: the results of every rank of every generation, whether or not the ranks failed; a rank
   that failed names its error.
2. A generation in which a rank failed is the last.
3. Failure: a process that dies, or is silent for longer than its ranks may wait, is an error that
   names it; the others are ended.
4. Cancel: an interrupt ends every process before it goes on.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.context import SpawnProcess

from headrace.errors import ConfigurationError
from headrace.loadtest._rank import RankResult, Seat
from headrace.loadtest._spec import Generation, SwarmSpec
from headrace.loadtest._worker import TICK_S, Finished, Tick, work

_START_S = 120.0  # arbitrary: a process imports gRPC and NumPy, on a machine that is busy
_END_S = 30.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a swarm is.

    Attributes:
        elapsed_s: Seconds since the swarm began.
        ranks: Ranks that run now, over all jobs.
        batches: Batches read so far, over all ranks and generations.
        batches_wanted: Batches that will have been read, if nothing stops the ranks.
        samples: Samples read so far.
        payload_bytes: Bytes of payload read so far.
        waited_s: Seconds that ranks have waited for batches, added up.
    """

    elapsed_s: float
    ranks: int
    batches: int
    batches_wanted: int
    samples: int
    payload_bytes: int
    waited_s: float

    @property
    def share(self) -> float:
        """Share of the run that is done, in [0, 1]."""
        return self.batches / max(1, self.batches_wanted)


@dataclass(frozen=True, slots=True)
class SwarmResult:
    """What a swarm did.

    Attributes:
        spec: What it was asked to do.
        results: One a rank and generation.
        began_at_s: When it began, as ``time.time()``.
        elapsed_s: Seconds from the start of the first rank to the end of the last.
    """

    spec: SwarmSpec
    results: tuple[RankResult, ...]
    began_at_s: float
    elapsed_s: float


def run_swarm(
    spec: SwarmSpec, *, progress: Callable[[Progress], None] | None = None
) -> SwarmResult:
    """Run simulated trainers; the module's head holds the contract.

    Args:
        spec: What to do.
        progress: Called about twice a second, in the caller's thread.

    Raises:
        ConfigurationError: A process of the swarm died or hangs.
    """
    began, began_at = time.monotonic(), time.time()
    board = _Board(spec, began)
    results: list[RankResult] = []
    tokens: list[bytes | None] = [None] * spec.jobs
    for number, generation in enumerate(spec.generations()):
        seats = [
            Seat(job, number, rank, tokens[job])
            for rank in range(generation.world_size)
            for job in range(spec.jobs)
        ]
        found = _run_generation(spec, generation, seats, board, progress)
        results += found
        if any(result.error for result in found):
            break
        firsts = {result.seat.job: result for result in found if result.seat.rank == 0}
        tokens = [firsts[job].last_token for job in range(spec.jobs)]
    return SwarmResult(spec, tuple(results), began_at, time.monotonic() - began)


class _Board:
    """Adds up what the processes tell."""

    def __init__(self, spec: SwarmSpec, began: float) -> None:
        self._began = began
        self._past = Tick(0, 0, 0, 0.0)
        self._ticks: dict[int, Tick] = {}
        steps = [(part.end_step - part.first_step) * part.world_size for part in spec.generations()]
        self._wanted = sum(steps) * spec.jobs

    def note(self, process: int, tick: Tick) -> None:
        self._ticks[process] = tick

    def end_generation(self) -> None:
        self._past = self._sum()
        self._ticks.clear()

    def progress(self, ranks: int) -> Progress:
        now = self._sum()
        return Progress(
            elapsed_s=time.monotonic() - self._began,
            ranks=ranks,
            batches=now.batches,
            batches_wanted=self._wanted,
            samples=now.samples,
            payload_bytes=now.payload_bytes,
            waited_s=now.waited_s,
        )

    def _sum(self) -> Tick:
        ticks = [self._past, *self._ticks.values()]
        return Tick(
            batches=sum(tick.batches for tick in ticks),
            samples=sum(tick.samples for tick in ticks),
            payload_bytes=sum(tick.payload_bytes for tick in ticks),
            waited_s=sum(tick.waited_s for tick in ticks),
        )


def _run_generation(
    spec: SwarmSpec,
    generation: Generation,
    seats: Sequence[Seat],
    board: _Board,
    progress: Callable[[Progress], None] | None,
) -> list[RankResult]:
    with _processes(spec, generation, seats) as processes:
        results: list[RankResult] = []
        waiting = dict(enumerate(processes))
        heard = dict.fromkeys(waiting, time.monotonic())
        while waiting:
            ends = {process.connection: number for number, process in waiting.items()}
            for ready in wait_for_any(list(ends), timeout=TICK_S):
                assert isinstance(ready, Connection)
                number = ends[ready]
                message = waiting[number].receive()
                heard[number] = time.monotonic()
                if isinstance(message, Tick):
                    board.note(number, message)
                else:
                    results += message.results
                    board.note(number, _tick_of(message))
                    del waiting[number]
            _check_alive(waiting, heard, silence_s=_START_S)
            if progress is not None:
                progress(board.progress(len(seats)))
        board.end_generation()
    return results


@dataclass(frozen=True, slots=True)
class _Process:
    process: SpawnProcess
    connection: Connection

    def receive(self) -> Tick | Finished:
        try:
            message = self.connection.recv()
        except EOFError:
            self.process.join(_END_S)
            raise ConfigurationError(
                f"a process of the load test died with exit code {self.process.exitcode}; its "
                "message is above; too little memory for so many ranks is the usual cause"
            ) from None
        assert isinstance(message, Tick | Finished)
        return message


@contextmanager
def _processes(
    spec: SwarmSpec, generation: Generation, seats: Sequence[Seat]
) -> Iterator[list[_Process]]:
    context = multiprocessing.get_context("spawn")  # forked children of gRPC hang
    started: list[_Process] = []
    try:
        for number in range(min(spec.processes, len(seats))):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work,
                args=(spec, generation, seats[number :: spec.processes], theirs),
                name=f"headrace-loadtest-{number}",
                daemon=True,
            )
            process.start()
            theirs.close()
            started.append(_Process(process, ours))
        yield started
    finally:
        for each in started:
            each.connection.close()  # tells a process that still runs to stop
        for each in started:
            each.process.join(_END_S)
            each.process.kill()
            each.process.join(_END_S)


def _check_alive(
    waiting: dict[int, _Process], heard: dict[int, float], *, silence_s: float
) -> None:
    now = time.monotonic()
    for number, process in waiting.items():
        if now - heard[number] > silence_s:
            raise ConfigurationError(
                f"{process.process.name} has said nothing for {silence_s:.0f} s; the machine is "
                "too busy for so many ranks: fewer --ranks, or more --processes"
            )


def _tick_of(finished: Finished) -> Tick:
    records = [result.records for result in finished.results]
    return Tick(
        batches=sum(part.size for part in records),
        samples=sum(int(part["sample_count"].sum()) for part in records),
        payload_bytes=sum(int(part["payload_bytes"].sum()) for part in records),
        waited_s=sum(float(part["wait_s"].sum()) for part in records),
    )
