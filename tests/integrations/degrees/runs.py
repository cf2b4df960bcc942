"""Run the ranks of a job until they die or end, and read what they saw."""

from __future__ import annotations

import json
import multiprocessing
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from exam.judge import Run, Step
from exam.ranks import free_port
from integrations.degrees.job import JOBS, STARTING, main
from integrations.degrees.told import LAST, Task

_KILLED = -9
_ERROR = re.compile(r"^[\w.]+(?:Error|Exception).*", re.MULTILINE)
_LIMIT_S, _OTHERS_S = 600.0, 60.0
"""Arbitrary: of a run, and of the other ranks when one has ended."""

Part = tuple[int, int]
"""Ranks, and the step that they die in, or `LAST`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the ranks of one run saw.

    Attributes:
        steps: By step, of each rank: epoch, ids and loss; only steps that all ranks took.
        is_well: Whether the ranks came to their end, or were killed where they should be.
        hung: Whether some of them did neither within minutes.
        said: The last line of a rank that failed.
    """

    steps: dict[int, list[tuple[int, list[int], float]]]
    is_well: bool
    hung: bool
    said: str

    @property
    def ids(self) -> dict[int, list[int]]:
        """The global batches."""
        return {step: [each for _, ids, _ in ranks for each in ids] for step, ranks in self}

    @property
    def losses(self) -> dict[int, list[float]]:
        """Of each rank."""
        return {step: [loss for _, _, loss in ranks] for step, ranks in self}

    def __iter__(self) -> Any:
        return iter(sorted(self.steps.items()))


def history(task: Task, parts: Sequence[Part]) -> list[Seen]:
    """Run one part after another, each from the newest checkpoint, until one fails."""
    task.folder.mkdir(parents=True, exist_ok=True)
    found: list[Seen] = []
    for ranks, kill in parts:
        found.append(_run(task, ranks, kill))
        if not found[-1].is_well:
            break
    return found


def trained_on(parts: Sequence[Seen]) -> Run:
    """Return the steps that count: those before the checkpoint that the next part went on from."""
    starts = [min(part.steps, default=LAST) for part in parts]
    ends = [*starts[1:], LAST + 1]
    return [
        Step(ranks[0][0], step, tuple(each for _, ids, _ in ranks for each in ids))
        for part, end in zip(parts, ends, strict=True)
        for step, ranks in part
        if step < end
    ]


def _run(task: Task, ranks: int, kill: int) -> Seen:
    for log in (*task.folder.glob("*.jsonl"), *task.folder.glob("*.txt")):
        log.unlink()
    told = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0"}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    told |= {"ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}
    # Forked from a process that has imported the frameworks, which takes longer than the job.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"integrations.degrees.{name}" for name in JOBS.values()])
    started = [
        context.Process(target=main, args=(task, kill, {**told, "RANK": rank, "LOCAL_RANK": rank}))
        for rank in map(str, range(1 if task.framework in STARTING else ranks))
    ]
    for process in started:
        process.start()
    codes = _ended(started)
    is_well = codes == {0} if kill == LAST else _KILLED in codes
    said = "" if is_well else _said(task.folder)
    return Seen(_steps(task.folder, ranks), is_well, None in codes, said)


def _ended(started: Sequence[BaseProcess]) -> set[int | None]:
    """Wait, and end what the death of another rank leaves hanging."""
    last = time.monotonic() + _LIMIT_S
    while alive := [process for process in started if process.is_alive()]:
        if len(alive) < len(started):
            last = min(last, time.monotonic() + _OTHERS_S)
        alive[0].join(0.1)
        if time.monotonic() > last:
            break
    codes = {process.exitcode for process in started}
    for process in started:
        process.kill()
        process.join()
    return codes


def _steps(folder: Path, ranks: int) -> dict[int, list[tuple[int, list[int], float]]]:
    found: dict[int, list[tuple[int, list[int], float]]] = {}
    for log in sorted(folder.glob("*.jsonl")):
        for text in log.read_text().splitlines():
            epoch, step, ids, loss = json.loads(text)
            found.setdefault(step, []).append((epoch, ids, loss))
    return {step: each for step, each in found.items() if len(each) == ranks}


def _said(folder: Path) -> str:
    """Return the error of a rank that did not merely lose another one."""
    texts = [path.read_text() for path in sorted(folder.glob("*.txt"))]
    errors = [error for text in texts for error in _ERROR.findall(text)]
    own = [error for error in errors if "gloo" not in error and "Connection" not in error]
    return next(iter(own or errors), "")
