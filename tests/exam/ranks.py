"""Run the ranks of a training job as processes, watch them, and kill them."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from exam.job import Job
from exam.starts import Process, Starter

Line = dict[str, Any]
_IMPORT_S = 180.0  # arbitrary: eight processes import torch on two cores
_LOOK_S = 0.02
_STORE_S = 300.0
_PORTS = 20_000, 32_000  # below those of outgoing connections


class Ranks:
    """The processes of one run.

    Attributes:
        folder: Of their logs and states.
        hung: Whether one of them said nothing for too long; all were killed then.
    """

    def __init__(
        self,
        starter: Starter,
        job: Job,
        folder: Path,
        *,
        hung_s: float = 60.0,
        do: str = "train",
    ) -> None:
        """Start them.

        Args:
            starter: Of the library's processes.
            job: What each of them is told, but for the rank.
            folder: A new one.
            hung_s: Seconds without a line after which a rank hangs.
            do: What they do, ``train`` or ``wait``.
        """
        folder.mkdir(parents=True)
        self.folder = folder
        self.hung = False
        self._hung_s = hung_s
        self._logs = [folder / f"{rank}.jsonl" for rank in range(job.world)]
        # A job of its own to launchers' eyes: some libraries tell jobs apart by it.
        port = str(free_port())
        self._processes = [
            starter.start(
                do,
                log,
                environment={**_launched(rank, job.world, port), **job.store},
                job=replace(job, rank=rank, log=str(log), states=str(folder)).to_json(),
            )
            for rank, log in enumerate(self._logs)
        ]

    def lines(self) -> list[list[Line]]:
        """Return what each rank has written so far."""
        return [[*whole_lines(log)] for log in self._logs]

    def wait(self, until: Callable[[list[list[Line]]], bool] | None = None) -> None:
        """Wait until all have ended, or a condition on their lines holds, or one hangs."""
        sizes, changed = [-1] * len(self._logs), [time.monotonic()] * len(self._logs)
        while not all(process.has_ended() for process in self._processes):
            now = time.monotonic()
            for rank, log in enumerate(self._logs):
                size = log.stat().st_size if log.exists() else 0
                if size != sizes[rank] or self._processes[rank].has_ended():
                    sizes[rank], changed[rank] = size, now
                if now - changed[rank] > (self._hung_s if size else _IMPORT_S):
                    self.hung = True
                    self.kill()
                    return
            if until is not None and until(self.lines()):
                return
            time.sleep(_LOOK_S)

    def kill(self, first: int = 0) -> None:
        """End all with SIGKILL, one of them first, and whatever processes they had started."""
        for process in self._processes[first:] + self._processes[:first]:
            process.kill()
        for process in self._processes:
            process.close()

    def saved(self) -> int:
        """Return the last step of which every rank has saved its state, 0 if there is none."""
        steps: dict[int, int] = {}
        for path in self.folder.glob("*.state"):
            step = int(path.name.split(".")[0])
            steps[step] = steps.get(step, 0) + 1
        return max((step for step, count in steps.items() if count == len(self._logs)), default=0)


@contextmanager
def running(
    starter: Starter, job: Job, folder: Path, *, hung_s: float, do: str = "train"
) -> Iterator[Ranks]:
    """Run ranks as `Ranks` says, and leave none behind."""
    ranks = Ranks(starter, job, folder, hung_s=hung_s, do=do)
    try:
        yield ranks
    finally:
        ranks.kill()


@contextmanager
def service(starter: Starter, job: Job, port: int, log: Path) -> Iterator[Process]:
    """Start what serves, wait until it takes connections, and kill it at last."""
    folders = [*job.folders]
    process = starter.start(
        "serve", log, environment=job.store, entry=job.entry, folders=folders, port=port
    )
    try:
        _wait_for(port, process)
        yield process
    finally:
        process.kill()
        process.close()


def free_port() -> int:
    """Return a port that nobody listens on, and that no outgoing connection is given meanwhile."""
    while True:
        port = random.randrange(*_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def store(starter: Starter, log: Path, **told: Any) -> str:
    """Let an entry write or append samples.

    Returns:
        Why that is not offered; empty if it was done.
    """
    process = starter.start("store", log, **told)
    if not process.has_ended(_STORE_S):
        process.kill()
    process.close()
    last = [*whole_lines(log)][-1:]
    if last and "not_offered" in last[0]:
        return str(last[0]["not_offered"])
    if not (last and "ended" in last[0]):
        raise RuntimeError(f"{told} failed: {last}")
    return ""


def whole_lines(log: Path) -> Iterator[Line]:
    """Yield the lines of a log, but for a last one that is torn."""
    if log.exists():
        for line in log.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _launched(rank: int, world: int, port: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def _wait_for(port: int, process: Process) -> None:
    end = time.monotonic() + _IMPORT_S
    while time.monotonic() < end and not process.has_ended():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(_LOOK_S)
    raise RuntimeError(f"process {process.pid} does not listen on port {port}")
