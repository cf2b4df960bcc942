"""A library in the exam: its data, its processes, and what was read from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from exam.answers import Answer, first_batch_s, stopped
from exam.job import GLOBAL_BATCH, SAMPLES, Job
from exam.judge import Step, compare, joined, resumed
from exam.libraries import Library
from exam.ranks import Ranks, free_port, running, service, store
from exam.starts import Process, Starter

OTHER_FIRST = 1_000_000
"""The first id of a mixture's second part, and of what is appended."""


class Candidate:
    """A library in the exam, with what was already read from it.

    Attributes:
        library: Which.
        folder: For its data, logs and states.
        seed: Of kills.
        kills: How many are tried.
    """

    def __init__(
        self,
        library: Library,
        folder: Path,
        *,
        kills: int = 20,
        workers: int = 2,
        hung_s: float = 60.0,
    ) -> None:
        """Import the library.

        Args:
            library: Which.
            folder: An empty one.
            kills: How many are tried, of trainers and of servers.
            workers: Of each rank, where a question does not ask for others.
            hung_s: Seconds without a batch after which a run hangs.
        """
        self.library = library
        self.folder = folder
        self.seed = 1
        self.kills = kills
        self._workers = workers
        self._hung_s = hung_s
        self._undisturbed: dict[str, tuple[Path, list[Step] | Answer]] = {}
        self._served: dict[tuple[str, ...], tuple[ExitStack, int]] = {}
        self._count = 0
        self._starter = Starter(library.python(), library.imports or (library.entry,))

    def job(self, *, world: int = 2, parts: tuple[str, ...] = ("a",)) -> Job:
        """Return the job of a run, with the same global batch for any number of ranks."""
        return Job(
            entry=self.library.entry,
            folders=tuple(str(self.data(part)) for part in parts),
            world=world,
            workers=self._workers,
            batch=GLOBAL_BATCH // world,
            save_every=self.library.save_every,
        )

    def data(self, part: str) -> Path:
        """Return the folder of a part of the data, which is written when it is first needed.

        Args:
            part: ``a`` and ``b`` are samples, ``d`` is documents.
        """
        folder = self.folder / part
        if not folder.exists():
            first = OTHER_FIRST if part == "b" else 0
            how = "documents" if part == "d" else "write"
            self.store(folder, first=first, count=SAMPLES, how=how)
        return folder

    def store(self, folder: Path, *, first: int, count: int, how: str) -> str:
        """Let the library write or append samples; return why that is not offered, or nothing."""
        told = {"entry": self.library.entry, "folder": str(folder), "first": first, "count": count}
        return store(self._starter, self._place("store").with_suffix(".jsonl"), how=how, **told)

    def undisturbed(self, job: Job) -> tuple[Path, list[Step] | Answer]:
        """Return the folder of states of a job that nothing disturbs, and its steps."""
        key = replace(job, address="").to_json()
        if key not in self._undisturbed:
            self._undisturbed[key] = self.read(job)
        return self._undisturbed[key]

    def read(self, job: Job) -> tuple[Path, list[Step] | Answer]:
        """Run a job to its end; return its folder, and its steps or why there are none."""
        with self.started(job) as ranks:
            ranks.wait()
            lines = ranks.lines()
            return ranks.folder, stopped(lines, hung=ranks.hung) or joined(lines)

    def resumed(self, first: Job, then: Job, step: int) -> Answer:
        """Compare a run that goes on from the last state at a step with one that never stopped."""
        if self.library.stateless:
            return self.stateless()
        step -= step % self.library.save_every
        states, before = self.undisturbed(first)
        if isinstance(before, Answer):
            return replace(before, message=f"before anything happened: {before.message}")
        job = replace(then, resume=str(states), resume_step=step, save_every=0)
        with self.started(job) as ranks:
            ranks.wait()
            lines = ranks.lines()
        if answer := stopped(lines, hung=ranks.hung):
            return answer
        found = compare(before, resumed(before, step, joined(lines)))
        return Answer(kind="read", difference=found, first_s=first_batch_s(lines))

    def stateless(self) -> Answer:
        """Return the answer of a library without states."""
        return Answer(kind="not offered", message=self.library.stateless)

    @contextmanager
    def started(self, job: Job) -> Iterator[Ranks]:
        """Run a job, beside a service where the library has one."""
        with self.ranks(self.served(job)) as ranks:
            yield ranks

    @contextmanager
    def started_alone(self, job: Job) -> Iterator[Ranks]:
        """Run a job, beside a service that is started for it."""
        if not self.library.has_service:
            with self.ranks(job) as ranks:
                yield ranks
            return
        port = free_port()
        with (
            self.service(job, port),
            self.ranks(replace(job, address=f"127.0.0.1:{port}")) as ranks,
        ):
            yield ranks

    @contextmanager
    def ranks(self, job: Job, *, do: str = "train") -> Iterator[Ranks]:
        """Run a job."""
        place = self._place("run")
        with running(self._starter, job, place, hung_s=self._hung_s, do=do) as ranks:
            yield ranks

    def served(self, job: Job) -> Job:
        """Tell a job where its data is served, if the library has a service."""
        if not self.library.has_service or job.address:
            return job
        if job.folders not in self._served:
            stack, port = ExitStack(), free_port()
            stack.enter_context(self.service(job, port))
            self._served[job.folders] = stack, port
        _, port = self._served[job.folders]
        return replace(job, address=f"127.0.0.1:{port}")

    def service(self, job: Job, port: int) -> AbstractContextManager[Process]:
        """Serve a job's data at a port; the end of the block is a SIGKILL."""
        return service(self._starter, job, port, self._place("service").with_suffix(".jsonl"))

    def _place(self, what: str) -> Path:
        self._count += 1
        return self.folder / f"{what}-{self._count}"

    def close(self) -> None:
        """End all processes."""
        for stack, _ in self._served.values():
            stack.close()
        self._served.clear()
        self._starter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
