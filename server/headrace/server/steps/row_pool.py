"""Work on the rows of batches in threads that all streams share.

Contract:

1. At most ``threads`` rows are worked on at a time, whatever the streams.
2. Of those that wait the next row is one of the caller whose rows have taken least time, and of one
   caller's streams of the one whose rows of this batch have.
3. A caller that was away cannot claim the time that it did not use.
4. The rows of a batch are begun in their order, and each once. After a failure none is begun; of
   several failures the first row's is raised.
5. Of the batches of one line, such as a stream has, the rows of the first are begun before those of
   the next.
6. Closing the generator begins no row any more, and waits for those that are worked on.
7. Threads are started when there is work, and end when there has been none for ``_IDLE_S``, or with
   `close`, after which the work fails.

The second is start-time fair queueing, as in `headrace.server.stream.fair_turns`.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from headrace.errors import HeadraceError, StepFailedError
from headrace.server.images.pixel_cache import PixelCache

_log = logging.getLogger(__name__)

_Made = TypeVar("_Made")

Waits: TypeAlias = Generator[threading.Event, None, _Made]
"""Something that other threads work on: yields what to wait for, as long as one likes, and looks up
each time whether it is late."""

_IDLE_S = 10.0


@dataclass(slots=True, eq=False)
class _Job:
    """The rows of one batch."""

    caller: Hashable
    count: int
    do: Callable[[int], None]
    line: object
    begun: int = 0
    running: int = 0
    used_s: float = 0.0
    is_over: bool = False
    failures: dict[int, HeadraceError] = field(default_factory=dict)
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def is_open(self) -> bool:
        return not self.is_over and not self.failures and self.begun < self.count


class RowPool:
    """The threads; the contract is above.

    Args:
        threads: How many there are at most.
        pixels: Decoded images that rows may use; None for none.
    """

    def __init__(self, threads: int, *, pixels: PixelCache | None = None) -> None:
        self.threads = threads
        self.pixels = pixels
        self._changed = threading.Condition()
        self._jobs: list[_Job] = []
        self._used_s: dict[Hashable, float] = {}
        self._clock_s = 0.0
        self._started: set[threading.Thread] = set()
        self._idle = 0
        self._is_closed = False

    def work(
        self,
        caller: Hashable,
        count: int,
        do: Callable[[int], None],
        *,
        timeout_s: float,
        line: object = None,
    ) -> Waits[None]:
        """Call a function with each of some rows.

        Args:
            caller: Whose they are.
            count: How many; the rows are 0 to that.
            do: What to do with one; raises a HeadraceError alone.
            timeout_s: How long all of them may take, the time of all threads added up.
            line: Its rows are begun after those of what came before in the same line; None for
                none.

        Raises:
            StepFailedError: They take longer, or the pool is closed.
            HeadraceError: As ``do``.
        """
        if not count:
            return
        job = _Job(caller, count, do, line)
        self._begin(job)
        try:
            while not job.finished.is_set():
                if job.used_s >= timeout_s:
                    raise StepFailedError(
                        f"a step worked longer than {timeout_s:g} s on a batch, of which it had "
                        f"begun {job.begun} of {count} parts; use smaller batches, or let the "
                        "operator set step_timeout_s"
                    )
                yield job.finished
        finally:
            self._end(job)
        for _, failure in sorted(job.failures.items()):
            raise failure

    def close(self) -> None:
        """End all threads, after the rows that they are at."""
        with self._changed:
            self._is_closed = True
            for job in self._jobs:
                job.is_over = True
                if not job.running:
                    job.failures.setdefault(job.begun, _closed_error())
                    job.finished.set()
            started = list(self._started)
            self._changed.notify_all()
        for thread in started:
            thread.join()

    def _begin(self, job: _Job) -> None:
        with self._changed:
            if self._is_closed:
                raise _closed_error()
            if not any(other.caller == job.caller for other in self._jobs):
                used_s = self._used_s.get(job.caller, 0.0)
                self._used_s[job.caller] = max(used_s, self._clock_s)
            self._jobs.append(job)
            missing = min(job.count, self.threads - len(self._started))
            for _ in range(max(0, missing - self._idle)):
                thread = threading.Thread(target=self._run, name="headrace-rows", daemon=True)
                self._started.add(thread)
                thread.start()
            self._changed.notify(job.count)

    def _end(self, job: _Job) -> None:
        with self._changed:
            job.is_over = True
            if not job.running:
                job.finished.set()
        job.finished.wait()
        with self._changed:
            self._jobs.remove(job)
            if not self._jobs:
                # Nobody has a claim to anything.
                self._used_s.clear()
                self._clock_s = 0.0

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            job, row = taken
            began = time.monotonic()
            failure: HeadraceError | None = None
            try:
                job.do(row)
            except HeadraceError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - our bug: who waits is told
                _log.exception("row %d of a batch could not be worked on", row)
                failure = StepFailedError(f"row {row}: {type(error).__name__}: {error}", row=row)
            self._done(job, row, time.monotonic() - began, failure)
            del job, taken

    def _take(self) -> tuple[_Job, int] | None:
        """Return what to do next; None at the end of the thread."""
        with self._changed:
            while True:
                job = None if self._is_closed else self._next()
                if job is not None:
                    row = job.begun
                    job.begun += 1
                    job.running += 1
                    self._clock_s = max(self._clock_s, self._used_s[job.caller])
                    return job, row
                self._idle += 1
                is_told = not self._is_closed and self._changed.wait(_IDLE_S)
                self._idle -= 1
                if not is_told:
                    self._started.discard(threading.current_thread())
                    return None

    def _next(self) -> _Job | None:
        ready: list[_Job] = []
        lines: set[int] = set()
        for job in self._jobs:
            if job.is_open and id(job.line) not in lines:
                ready.append(job)
                if job.line is not None:
                    lines.add(id(job.line))
        if len(ready) < 2:  # noqa: PLR2004 - nothing to choose from
            return ready[0] if ready else None
        return min(ready, key=lambda job: (self._used_s[job.caller], job.used_s))

    def _done(self, job: _Job, row: int, took_s: float, failure: HeadraceError | None) -> None:
        with self._changed:
            job.running -= 1
            job.used_s += took_s
            self._used_s[job.caller] += took_s
            if failure is not None:
                job.failures[row] = failure
            elif self._is_closed and job.begun < job.count:
                job.failures.setdefault(job.begun, _closed_error())
            if not job.running and not job.is_open:
                job.finished.set()


@dataclass(frozen=True, slots=True, eq=False)
class Workers:
    """Who works on the rows of a batch, for whom, and for how long.

    Attributes:
        pool: The threads.
        caller: Whose batch it is.
        timeout_s: How long each piece of work may take.
        line: See `RowPool.work`.
    """

    pool: RowPool
    caller: Hashable
    timeout_s: float
    line: object = None

    def work(self, count: int, do: Callable[[int], None]) -> Waits[None]:
        """Call a function with each of some rows, as `RowPool.work` does."""
        return self.pool.work(self.caller, count, do, timeout_s=self.timeout_s, line=self.line)


def allowed_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _closed_error() -> StepFailedError:
    return StepFailedError("the server shuts down, and works on no batches any more")
