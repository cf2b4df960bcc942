"""Run a swarm in processes with many ranks, one generation after another.

Contract of `run_swarm`:

1. Success: the results of all ranks of all generations are returned, including those of ranks that
   failed, with their errors.
2. A generation in which a rank failed is the last.
3. Failure: a process that dies, or sends nothing for too long, raises an error that names it, and
   the other processes are ended.
4. Crash, if specified: all processes are killed with SIGKILL. What their ranks read after the last
   common checkpoint is dropped and read again.
5. Stop: once the caller's event is set, each rank ends after the batch that it waits for, and 1
   follows.
6. Cancel: an interrupt ends all processes before it is raised.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.context import SpawnProcess

from headrace.errors import ConfigurationError
from headrace.loadtest.swarm.crash import Crash
from headrace.loadtest.swarm.rank import RankResult, RankSeat
from headrace.loadtest.swarm.spec import Generation, SwarmSpec
from headrace.loadtest.swarm.worker import TICK_S, ProcessResults, Tick, work

_START_S = 120.0  # arbitrary: enough for imports on a busy machine
_END_S = 30.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a swarm.

    Attributes:
        elapsed_s: Seconds since the swarm started.
        ranks: The number of running ranks of all jobs.
        batches: Batches read so far, over all ranks and generations.
        batches_wanted: The total number of batches to read, if nothing stops the ranks.
        samples: Samples read so far.
        payload_bytes: Payload bytes read so far.
        waited_s: Total seconds that ranks have waited for batches.
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
        """Return the finished share of the run, in [0, 1]."""
        return self.batches / max(1, self.batches_wanted)


@dataclass(frozen=True, slots=True)
class SwarmResult:
    """The results of a swarm.

    Attributes:
        spec: The specification.
        generations: The generations that ran, between rescales or crashes. Steps that were lost in
            a crash and repeated belong to the later generation.
        results: One result per rank and generation.
        began_at_s: When the swarm started, as ``time.time()``.
        elapsed_s: Seconds from the start of the first rank to the end of the last.
        may_lack_steps: Whether ranks without an error may have ended before their last step,
            because of the time or because they were told to.
    """

    spec: SwarmSpec
    generations: tuple[Generation, ...]
    results: tuple[RankResult, ...]
    began_at_s: float
    elapsed_s: float
    may_lack_steps: bool = False


def run_swarm(
    spec: SwarmSpec,
    *,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> SwarmResult:
    """Run simulated trainers, as the contract of this module says.

    Args:
        spec: The specification.
        progress: Called about twice a second, in the caller's thread.
        stop: Ends the run early once it is set.

    Raises:
        ConfigurationError: A process of the swarm died or hung.
    """
    return _Swarm(spec, progress, stop or threading.Event()).run()


class _Swarm:
    def __init__(
        self,
        spec: SwarmSpec,
        progress: Callable[[Progress], None] | None,
        stop: threading.Event,
    ) -> None:
        self._spec = spec
        self._progress = progress
        self._stop = stop
        self._began, self._began_at = time.monotonic(), time.time()
        self._totals = _Totals(spec, self._began)
        self._planned = deque(spec.generations())
        self._crash_steps = deque(max(1, int(spec.steps * share)) for share in spec.crashes)
        self._done: list[Generation] = []
        self._results: list[RankResult] = []
        self._tokens: list[bytes | None] = [None] * spec.jobs

    def run(self) -> SwarmResult:
        while self._planned:
            if not self._run_next(self._planned.popleft()):
                break
        return SwarmResult(
            spec=self._spec,
            generations=tuple(self._done),
            results=tuple(self._results),
            began_at_s=self._began_at,
            elapsed_s=time.monotonic() - self._began,
            may_lack_steps=self._stop.is_set() or self._spec.seconds is not None,
        )

    def _run_next(self, generation: Generation) -> bool:
        """Run a generation, and return whether another may follow."""
        seats = [
            RankSeat(job, len(self._done), rank, self._tokens[job])
            for rank in range(generation.world_size)
            for job in range(self._spec.jobs)
        ]
        crash = self._crash_of(generation, seats)
        found = self._run_generation(generation, seats, crash)
        if found is None:
            assert crash is not None
            self._resume_after(crash, generation)
            return True
        self._done.append(generation)
        self._results += found
        if any(result.error for result in found) or self._stop.is_set():
            return False
        firsts = {result.seat.job: result for result in found if result.seat.rank == 0}
        self._tokens = [firsts[job].last_token for job in range(self._spec.jobs)]
        return True

    def _crash_of(self, generation: Generation, seats: Sequence[RankSeat]) -> Crash | None:
        if not self._crash_steps or self._crash_steps[0] >= generation.end_step:
            return None
        return Crash(self._crash_steps.popleft(), generation.first_step, seats)

    def _resume_after(self, crash: Crash, generation: Generation) -> None:
        step, tokens, results = crash.checkpoint(self._spec)
        if step > generation.first_step:
            self._done.append(replace(generation, end_step=step))
            self._results += results
            self._tokens = [*tokens]
        self._planned.appendleft(replace(generation, first_step=step))

    def _run_generation(
        self, generation: Generation, seats: Sequence[RankSeat], crash: Crash | None
    ) -> list[RankResult] | None:
        """Return the results of all ranks, or None if their processes were killed."""
        results: list[RankResult] = []
        with _processes(self._spec, generation, seats) as processes:
            waiting = dict(enumerate(processes))
            heard_s = dict.fromkeys(waiting, time.monotonic())
            is_told = False
            while waiting:
                if self._stop.is_set() and not is_told:
                    is_told = True
                    _tell_to_stop(waiting.values())
                ends = {process.connection: number for number, process in waiting.items()}
                for ready in wait_for_any(list(ends), timeout=TICK_S):
                    assert isinstance(ready, Connection)
                    number = ends[ready]
                    heard_s[number] = time.monotonic()
                    message = waiting[number].receive()
                    self._totals.note(number, _tick_of(message))
                    if isinstance(message, ProcessResults):
                        results += message.results
                        del waiting[number]
                    if crash is not None:
                        crash.note(message)
                _check_alive(waiting, heard_s, silence_s=_START_S)
                if self._progress is not None:
                    self._progress(self._totals.progress(len(seats)))
                if crash is not None and crash.is_due():
                    # They may have come to their end before their news came here.
                    _kill(processes)
                    return None
            self._totals.end_generation()
        return results


class _Totals:
    """Add up the progress of the processes."""

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


@dataclass(frozen=True, slots=True)
class _Process:
    process: SpawnProcess
    connection: Connection

    def receive(self) -> Tick | ProcessResults:
        try:
            message = self.connection.recv()
        except EOFError:
            self.process.join(_END_S)
            raise ConfigurationError(
                f"a process of the load test died with exit code {self.process.exitcode}; see its "
                "message above; the usual cause is too little memory for this number of ranks"
            ) from None
        assert isinstance(message, Tick | ProcessResults)
        return message


@contextmanager
def _processes(
    spec: SwarmSpec, generation: Generation, seats: Sequence[RankSeat]
) -> Iterator[list[_Process]]:
    context = multiprocessing.get_context("spawn")  # forked processes with gRPC hang
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
            each.connection.close()  # tells a running process to stop
        for each in started:
            each.process.join(_END_S)
            each.process.kill()
            each.process.join(_END_S)


def _check_alive(
    waiting: dict[int, _Process], heard_s: dict[int, float], *, silence_s: float
) -> None:
    now = time.monotonic()
    for number, process in waiting.items():
        if now - heard_s[number] > silence_s:
            raise ConfigurationError(
                f"{process.process.name} has sent nothing for {silence_s:.0f} s; the machine is "
                "too busy for this number of ranks: use fewer --ranks, or more --processes"
            )


def _tell_to_stop(processes: Iterable[_Process]) -> None:
    for each in processes:
        with suppress(OSError):  # it has just sent its results, or died
            each.connection.send(None)


def _kill(processes: Sequence[_Process]) -> None:
    for each in processes:
        each.process.kill()
    for each in processes:
        each.process.join(_END_S)


def _tick_of(message: Tick | ProcessResults) -> Tick:
    if isinstance(message, Tick):
        return message
    records = [result.records for result in message.results]
    return Tick(
        batches=sum(part.size for part in records),
        samples=sum(int(part["sample_count"].sum()) for part in records),
        payload_bytes=sum(int(part["payload_bytes"].sum()) for part in records),
        waited_s=sum(float(part["wait_s"].sum()) for part in records),
    )
