"""A training loop that measures: how long it waits for batches, and what it costs to feed it.

Memory and processor time are those of all processes in the group of this one and of its service,
as the kernel counts them: workers, their helpers and servers, whatever a library starts.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from exam.job import Job
from exam.trainer import Log

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def wait(task: Mapping[str, Any], log: Log) -> None:
    """Read the epochs of a job, with steps in which the processor is free."""
    job = Job.from_json(task["job"])
    entry = importlib.import_module(job.entry)
    log.write(imported=True)
    groups = {os.getpgid(0), *job.also}
    began = time.monotonic()
    stream = entry.open_stream(job, 0, [])
    batches = chain.from_iterable(stream.epoch(number) for number in range(job.epochs))
    samples = len(next(batches)[0])
    log.write(first_s=time.monotonic() - began)
    waits: list[float] = []
    samples, pss, spent = 0, 0, _spent(groups)
    while True:
        time.sleep(job.step_s)
        asked = time.monotonic()
        batch = next(batches, None)
        if batch is None:
            break
        waits.append(time.monotonic() - asked)
        samples += len(batch[0])
        if len(waits) == job.save_every:
            # The workers of most libraries end with the epoch.
            spent, pss = _spent(groups) - spent, _pss(groups)
            log.write(waits=waits, samples=samples, cpu_s=spent, pss=pss, step_s=job.step_s)
            return
    raise RuntimeError(f"there were {len(waits)} batches; expected {job.save_every}")


def _processes(groups: Iterable[int]) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folder of each process of some groups, and what ``stat`` says behind its name."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) in groups:
                    yield folder, fields


def _spent(groups: Iterable[int]) -> float:
    return sum(int(each[11]) + int(each[12]) for _, each in _processes(groups)) * _TICK_S


def _pss(groups: Iterable[int]) -> int:
    """Return bytes of memory, of which pages that several processes share count once."""
    found = 0
    for folder, _ in _processes(groups):
        with suppress(OSError):
            for line in (folder / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    found += int(line.split()[1]) << 10
    return found
