"""One rank of a training job: reads batches, writes down their ids, saves states.

Its log has a line of JSON for each thing that happened; of an ending by SIGKILL the last line may
be torn.
"""

from __future__ import annotations

import importlib
import json
import pickle
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exam.entry import NotOffered
from exam.job import Job, payload


class Log:
    """The lines that a process writes about itself."""

    def __init__(self, path: Path) -> None:
        """Open it."""
        self._file = path.open("a", buffering=1)

    def write(self, **fields: object) -> None:
        """Write a line."""
        self._file.write(json.dumps(fields) + "\n")


def recorded(path: Path, do: Callable[[Log], None]) -> None:
    """Do something, and write down how it ended."""
    log = Log(path)
    try:
        do(log)
        log.write(ended=True)
    except NotOffered as reason:
        log.write(not_offered=str(reason))
    except BaseException as error:  # noqa: BLE001 - whatever a library raises is its answer
        traceback.print_exc()
        log.write(error=type(error).__name__, message=str(error).strip())


def train(task: Mapping[str, Any], log: Log) -> None:
    """Read as a task's job says."""
    job = Job.from_json(task["job"])
    entry = importlib.import_module(job.entry)
    log.write(imported=True)
    saved = _load(job)
    epoch, step = saved[0]["epoch"] if saved else 0, job.resume_step
    began = time.monotonic()
    opened = entry.open_packed if job.is_packed else entry.open_stream
    stream = opened(job, epoch, [each["state"] for each in saved])
    for number in range(epoch, job.epochs):
        for ids, payloads in stream.epoch(number):
            step += 1
            found = [int(each) for each in ids]
            altered = 0 if job.is_packed else _altered(found, payloads)
            at = time.monotonic() - began
            log.write(epoch=number, step=step, ids=found, altered=altered, at=round(at, 3))
            if job.save_every and step % job.save_every == 0:
                _save(job, {"epoch": number, "step": step, "state": stream.state()})
            time.sleep(job.step_s)


def _altered(ids: list[int], payloads: Sequence[bytes]) -> int:
    return sum(payload(each) != bytes(kept) for each, kept in zip(ids, payloads, strict=True))


def _load(job: Job) -> list[dict[str, Any]]:
    if not job.resume:
        return []
    paths = sorted(
        Path(job.resume).glob(f"{job.resume_step}.*.state"),
        key=lambda path: int(path.name.split(".")[1]),
    )
    return [pickle.loads(path.read_bytes()) for path in paths]


def _save(job: Job, found: dict[str, Any]) -> None:
    path = Path(job.states) / f"{found['step']}.{job.rank}.state"
    path.with_suffix(".part").write_bytes(pickle.dumps(found))
    path.with_suffix(".part").replace(path)
