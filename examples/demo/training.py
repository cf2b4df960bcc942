"""Run one training of the demo, with both of its faults, and note what happened."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from demo.digest import BatchKey, SampleIds, read_attempt
from demo.events import EpochDone, Event, StepDone, TrainerReady, from_json
from demo.jobs import Job
from demo.processes import Child, Processes, ProcessFailedError, kill
from demo.serving import Server
from demo.trainer import seen_path

# Between two events; a trainer starts in some seconds and a server in two.
_EVENT_TIMEOUT_S = 90.0


@dataclass(slots=True)
class Attempt:
    """What one process group told until it ended or was killed.

    Attributes:
        world_size: Number of its ranks.
        first_step: Where it began: the step of the checkpoint.
        steps: Its steps, in order.
        tests: Its tests, in order.
        killed_at: Wall clock of its SIGKILL; None if it came to its end.
    """

    world_size: int
    first_step: int = 0
    steps: list[StepDone] = field(default_factory=list)
    tests: list[EpochDone] = field(default_factory=list)
    killed_at: float | None = None

    @property
    def ranks(self) -> str:
        """Its number of ranks in words."""
        return "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"


@dataclass(slots=True)
class Record:
    """A whole training.

    Attributes:
        job: What was to be done.
        folder: Holds what the ranks noted.
        attempts: The killed process group and its successor.
        server_killed_at: Wall clock of the server's SIGKILL.
        server_killed_after: The last step known when it was sent.
    """

    job: Job
    folder: Path
    attempts: list[Attempt] = field(default_factory=list)
    server_killed_at: float | None = None
    server_killed_after: StepDone | None = None

    @property
    def final_accuracy(self) -> float:
        """The test accuracy after the last epoch."""
        return self.attempts[-1].tests[-1].test_accuracy

    @property
    def usual_step_s(self) -> float:
        """Median time of a step, in seconds."""
        return median(step.seconds for attempt in self.attempts for step in attempt.steps)

    @property
    def pause_s(self) -> float:
        """The longest step after the server was killed, in seconds; it waited for the new one."""
        assert self.server_killed_at is not None
        after = [s for s in self.attempts[0].steps if s.finished_at >= self.server_killed_at]
        return max((step.seconds for step in after), default=0.0)

    @property
    def reconnect_count(self) -> int:
        """How often rank 0 tried to open its stream again before the trainer was killed."""
        return self.attempts[0].steps[-1].reconnect_count

    @property
    def restart_s(self) -> float:
        """Seconds from the SIGKILL of the trainer to the first step of its successor."""
        killed, successor = self.attempts
        assert killed.killed_at is not None
        return successor.steps[0].finished_at - killed.killed_at

    def seen(self) -> list[dict[BatchKey, SampleIds]]:
        """Read what each attempt's ranks noted."""
        return [
            read_attempt(
                [
                    seen_path(self.folder, attempt=number, rank=rank)
                    for rank in range(attempt.world_size)
                ]
            )
            for number, attempt in enumerate(self.attempts)
        ]


class Training:
    """Starts the ranks of a job, follows their events, and strikes."""

    def __init__(
        self,
        job: Job,
        *,
        folder: Path,
        processes: Processes,
        server: Server,
        say: Callable[[str], None],
        show: Callable[[str], None] = lambda _: None,
        resumed: Callable[[], None] = lambda: None,
    ) -> None:
        self.job = job
        self.folder = folder
        self.processes = processes
        self.server = server
        self.say = say
        self.show = show
        self.resumed = resumed
        self.record = Record(job, folder)

    def run(self) -> Record:
        """Train to the end, through both faults if there is a successor.

        Raises:
            ProcessFailedError: A rank failed that nobody killed.
        """
        for number, world_size in enumerate(self.job.world_sizes):
            attempt = Attempt(world_size)
            self.record.attempts.append(attempt)
            ranks = self._start_ranks(number, world_size)
            for event in _events(ranks[0]):
                self._note(event, attempt)
                if number == 0 and len(self.job.world_sizes) > 1:
                    self._strike(ranks, attempt)
            if attempt.killed_at is None:
                self._end(ranks)
        return self.record

    def _end(self, ranks: list[Child]) -> None:
        for rank in ranks:
            rank.wait(time.monotonic() + _EVENT_TIMEOUT_S)
        if len(self.record.attempts) < len(self.job.world_sizes):
            raise ProcessFailedError(
                f"the training of {self.job.task} ended before it could be killed at step "
                f"{self.job.trainer_dies_at}: train longer"
            )

    def _note(self, event: Event, attempt: Attempt) -> None:
        match event:
            case TrainerReady():
                attempt.first_step = event.first_step
                self.say(f"world size {event.world_size} begins at step {event.first_step}")
            case StepDone():
                attempt.steps.append(event)
                self.show(f"epoch {event.epoch + 1} of {self.job.epochs}, step {event.step}")
                if len(attempt.steps) == 1 and len(self.record.attempts) > 1:
                    self.resumed()
            case EpochDone():
                attempt.tests.append(event)
                self.say(_epoch_line(event, attempt))

    def _strike(self, ranks: list[Child], attempt: Attempt) -> None:
        if not attempt.steps or attempt.killed_at is not None:
            return
        last = attempt.steps[-1]
        if self.record.server_killed_at is None and last.step >= self.job.server_dies_at:
            self.record.server_killed_at = time.time()
            self.record.server_killed_after = last
            self.server.kill_and_replace()
            self.say(f"[red]SIGKILL to the server[/] in epoch {last.epoch}, step {last.step}")
        if last.step >= self.job.trainer_dies_at:
            attempt.killed_at = time.time()
            kill(*ranks)
            self.say(f"[red]SIGKILL to every rank[/] in epoch {last.epoch}, step {last.step}")

    def _start_ranks(self, attempt: int, world_size: int) -> list[Child]:
        port = _free_port()
        return [
            self.processes.start(
                f"{self.job.task}-attempt-{attempt}-rank-{rank}",
                self._command(attempt),
                environment={
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(world_size)
        ]

    def _command(self, attempt: int) -> list[str]:
        job = self.job
        return [
            *(sys.executable, "-m", "demo.trainer", "--json"),
            *("--task", job.task, "--target", self.server.address),
            *("--global-batch-size", str(job.global_batch_size), "--epochs", str(job.epochs)),
            *("--folder", str(self.folder), "--attempt", str(attempt), "--seed", str(job.seed)),
            *("--checkpoint-every", str(job.checkpoint_every)),
            *("--prefetch-bytes", str(job.prefetch_bytes)),
        ]


def _events(rank: Child) -> Iterator[Event]:
    """Yield the events of a rank until its output ends."""
    while (line := rank.read_line(time.monotonic() + _EVENT_TIMEOUT_S)) is not None:
        try:
            yield from_json(line)
        except ValueError as error:
            raise ProcessFailedError(f"{rank.name}: {error}; {rank.last_words()}") from error


def _epoch_line(test: EpochDone, attempt: Attempt) -> str:
    steps = [step for step in attempt.steps if step.epoch == test.epoch]
    loss = fmean(step.loss for step in steps)
    accuracy = fmean(step.accuracy for step in steps)
    return (
        f"epoch {test.epoch}: loss {loss:.3f}, training accuracy {accuracy:.1%}, "
        f"test accuracy {test.test_accuracy:.1%}"
    )


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
