"""Work on the rows of batches in threads that all streams share.

Contract:

1. At most ``threads`` rows are processed at a time, regardless of the number of streams.
2. The next row belongs to the waiting caller whose rows have taken the least time; among the
   lines of one caller, such as its streams, to the line whose rows have. A batch in no line is a
   line of its own.
3. A caller or a line that was idle cannot claim the time that it did not use.
4. The rows of a batch are started in order, each once. After a failure no row is started; if
   several fail, the first row's error is raised.
5. Within one line the rows of a batch are started before those of the next batch.
6. Closing the generator starts no further row, and waits for rows in progress.
7. Threads start when there is work, and end when there has been none for ``_IDLE_S`` or on `close`,
   after which calls fail.
8. While a caller is not alone, its rows leave a processor to others, whose work may need no rows.

Rule 2 is start-time fair queueing, as in `headrace.server.stream.fair_turns`.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from headrace.errors import HeadraceError, StageFailedError

_log = logging.getLogger(__name__)

_Made = TypeVar("_Made")

Waits: TypeAlias = Generator[threading.Event, None, _Made]
"""Work done by other threads: it yields an event to wait for, for any time, and checks after each
wait whether the deadline has passed."""

_IDLE_S = 10.0

# How often a thread that is left to other callers looks whether they still need it (arbitrary).
_LOOK_S = 0.05


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

    @property
    def key(self) -> int:
        return id(self if self.line is None else self.line)


class _Clock:
    """The seconds that each of several contenders has used; the one with the fewest goes first."""

    def __init__(self) -> None:
        self.used_s: dict[Hashable, float] = {}
        self._now_s = 0.0

    def join(self, who: Hashable) -> None:
        """Let in a contender that was idle; what others used meanwhile counts as used."""
        self.used_s[who] = max(self.used_s.get(who, 0.0), self._now_s)

    def take(self, who: Hashable) -> None:
        """Note who goes next."""
        self._now_s = max(self._now_s, self.used_s[who])

    def forget(self, active: set[int]) -> None:
        """Forget the idle ones whose claim would be the same if they joined for the first time."""
        for who in [one for one in self.used_s if one not in active]:
            if self.used_s[who] <= self._now_s:
                del self.used_s[who]


class RowPool:
    """Run work on rows in threads, according to the contract above.

    Args:
        threads: The maximum number of threads.
        is_alone: Returns whether no other caller needs processors.
    """

    def __init__(self, threads: int, is_alone: Callable[[Hashable], bool] = lambda _: True) -> None:
        self.threads = threads
        self._is_alone = is_alone
        self._most_beside_others = max(1, min(threads, allowed_processors() - 1))
        self._running: Counter[Hashable] = Counter()
        self._changed = threading.Condition()
        self._jobs: list[_Job] = []
        self._callers = _Clock()
        self._lines: dict[Hashable, _Clock] = {}
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
        """Call a function with each row of a batch.

        Args:
            caller: The caller to whom the rows belong.
            count: The number of rows; they are ``[0, count)``.
            do: Is called with a row; may raise only HeadraceError.
            timeout_s: The most that the rows may take, in seconds summed over all threads.
            line: The line of the batch: its rows start after those of earlier batches of the line;
                None for no line.

        Raises:
            StageFailedError: The rows take longer, or the pool is closed.
            HeadraceError: ``do`` raised it.
        """
        if not count:
            return
        job = _Job(caller, count, do, line)
        self._begin(job)
        try:
            while not job.finished.is_set():
                if job.used_s >= timeout_s:
                    raise StageFailedError(
                        f"a stage worked longer than {timeout_s:g} s on a batch, and had started "
                        f"{job.begun} of {count} parts; use smaller batches, or ask the operator "
                        "to raise stage_timeout_s"
                    )
                yield job.finished
        finally:
            self._end(job)
        for _, failure in sorted(job.failures.items()):
            raise failure

    def close(self) -> None:
        """End all threads, after the rows in progress."""
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
            others = {other.key for other in self._jobs if other.caller == job.caller}
            if not others:
                self._callers.join(job.caller)
                self._lines[job.caller] = _Clock()
            if job.key not in others:
                self._lines[job.caller].join(job.key)
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
                # No caller has any claim.
                self._callers = _Clock()
            left = {other.key for other in self._jobs if other.caller == job.caller}
            if left:
                self._lines[job.caller].forget(left)
            else:
                del self._lines[job.caller]

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            job, row = taken
            began = time.monotonic()
            failure: HeadraceError | None = None
            try:
                job.do(row)
            except HeadraceError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - our bug: the waiting caller is told
                _log.exception("row %d of a batch could not be processed", row)
                failure = StageFailedError(f"row {row}: {type(error).__name__}: {error}", row=row)
            self._done(job, row, time.monotonic() - began, failure)
            del job, taken

    def _take(self) -> tuple[_Job, int] | None:
        """Return the next row to process; None if the thread should end."""
        with self._changed:
            while True:
                job = None if self._is_closed else self._next()
                if job is not None:
                    row = job.begun
                    job.begun += 1
                    job.running += 1
                    self._running[job.caller] += 1
                    self._callers.take(job.caller)
                    self._lines[job.caller].take(job.key)
                    return job, row
                is_left = any(job.is_open for job in self._jobs)
                self._idle += 1
                wait_s = _LOOK_S if is_left else _IDLE_S
                is_told = not self._is_closed and self._changed.wait(wait_s)
                self._idle -= 1
                if self._is_closed or not (is_told or is_left):
                    self._started.discard(threading.current_thread())
                    return None

    def _next(self) -> _Job | None:
        ready: dict[int, _Job] = {}
        served: set[Hashable] = set()
        for job in self._jobs:
            if not job.is_open or job.caller in served:
                continue
            if self._has_share(job.caller):
                served.add(job.caller)
            else:
                ready.setdefault(job.key, job)
        if len(ready) < 2:  # noqa: PLR2004 - nothing to choose from
            return next(iter(ready.values()), None)
        return min(ready.values(), key=self._used)

    def _has_share(self, caller: Hashable) -> bool:
        return self._running[caller] >= self._most_beside_others and not self._is_alone(caller)

    def _used(self, job: _Job) -> tuple[float, float]:
        return self._callers.used_s[job.caller], self._lines[job.caller].used_s[job.key]

    def _done(self, job: _Job, row: int, took_s: float, failure: HeadraceError | None) -> None:
        with self._changed:
            job.running -= 1
            self._running[job.caller] -= 1
            if not self._running[job.caller]:
                del self._running[job.caller]
            job.used_s += took_s
            self._callers.used_s[job.caller] += took_s
            self._lines[job.caller].used_s[job.key] += took_s
            if failure is not None:
                job.failures[row] = failure
            elif self._is_closed and job.begun < job.count:
                job.failures.setdefault(job.begun, _closed_error())
            if not job.running and not job.is_open:
                job.finished.set()


@dataclass(frozen=True, slots=True, eq=False)
class Workers:
    """The threads that process the rows of a batch, with its caller and deadline.

    Attributes:
        pool: The threads.
        caller: The caller to whom the batch belongs.
        timeout_s: The most that one call of `work` may take, in seconds.
        line: See `RowPool.work`.
    """

    pool: RowPool
    caller: Hashable
    timeout_s: float
    line: object = None

    def work(self, count: int, do: Callable[[int], None]) -> Waits[None]:
        """Call a function with each row of the batch, as `RowPool.work` does."""
        return self.pool.work(self.caller, count, do, timeout_s=self.timeout_s, line=self.line)


def allowed_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _closed_error() -> StageFailedError:
    return StageFailedError("the server is shutting down and no longer processes batches")
