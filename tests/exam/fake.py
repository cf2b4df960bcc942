"""An entry without a library, with a fault that the tests choose: the exam must find it out.

The file ``fault`` beside the data names it. Without one, the reader is faultless: samples in an
order of seed and epoch, any ranks, a position as its state.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from exam.entry import Batch, NotOffered
from exam.job import Job
from exam.rows import Rows, write_rows

write = append = write_rows


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open the samples."""
    del epoch
    return _Stream(job, states)


class _Stream:
    def __init__(self, job: Job, states: Sequence[Any]) -> None:
        self._job = job
        fault = Path(job.folders[0]).parent / "fault"
        self._fault = fault.read_text() if fault.exists() else ""
        self._samples = [part[row] for part in map(Rows, job.folders) for row in range(len(part))]
        self._position = 0
        if states:
            self._resume(states[0])

    def _resume(self, state: Any) -> None:
        self._position = state
        job, a_batch = self._job, self._job.batch * self._job.world
        match self._fault:
            case "loses":
                self._position += a_batch
            case "repeats":
                self._position -= a_batch
            case "forgets":
                self._position = 0
            case "refuses":
                raise ValueError(f"the state is of another run than seed {job.seed}")
            case "has an accident":
                raise KeyError(job.world)
            case "offers nothing":
                raise NotOffered("it has no states")
            case "hangs":
                time.sleep(3600)
            case "dies":
                os.kill(os.getpid(), signal.SIGSEGV)

    def epoch(self, number: int) -> Iterator[Batch]:
        order = [*range(len(self._samples))]
        if self._job.shuffle:
            random.Random(f"{self._job.seed} {number}").shuffle(order)
        if self._fault == "reorders" and self._position:  # what is left, so that nothing is lost
            left = order[self._position :]
            order[self._position :] = random.Random(self._position).sample(left, len(left))
        if self._fault == "never agrees":  # with an earlier run
            random.Random(self._job.log.rpartition("/")[0]).shuffle(order)
        size = self._job.batch * self._job.world
        while self._position + size <= len(order):
            start = self._position + self._job.rank * self._job.batch
            self._position += size
            found = [self._samples[at] for at in order[start : start + self._job.batch]]
            values = [value for _, value in found]
            if self._fault == "alters" and number:
                values[0] = values[0][::-1]
            yield [sample_id for sample_id, _ in found], values
        self._position = 0

    def state(self) -> Any:
        return self._position
