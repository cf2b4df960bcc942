"""How much of a cache the jobs of its open streams need, and how much of it each may use.

All bytes are bytes of memory, as blocks lie in it decoded; orders count raw bytes.

1. A job needs what its lanes shuffle together, and a sixteenth of that for runs that arrive before
   others have been used up. It needs no more than all its data takes.
2. Jobs that read the same data share its blocks, so together they need no more than all of it.
3. A job is short of memory if it may use less than what it shuffles together: without the sixteenth
   few blocks are read twice.
4. If the cache is too small for all, those that need least get what they need, and the others equal
   parts of what is left.
5. A stream that was set up for a job with enough memory is told, once, when its job is short of it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

# A step of the order: see docs/order.md.
_ARRIVING = 16
# Blocks are evicted in their order of need, but it is known only approximately (measured: with an
# eighth more than jobs need, reading ahead makes no block be read twice).
_KEPT_BESIDE = 8


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """What a stream needs of the cache, together with the others of its job.

    Attributes:
        job: Identifies the job.
        lanes: The lanes that it reads.
        lane_bytes: Bytes in memory of what each lane shuffles together.
        data: Identifies the data; other jobs may read the same.
        data_bytes: Bytes of all of it in memory.
    """

    job: Hashable
    lanes: range
    lane_bytes: int
    data: Hashable
    data_bytes: int

    @property
    def needed_bytes(self) -> int:
        """What the lanes need together."""
        return needed_bytes(self.lane_bytes * len(self.lanes), self.data_bytes)

    @property
    def least_bytes(self) -> int:
        """What they shuffle together: with less, they are short of memory."""
        return min(self.lane_bytes * len(self.lanes), self.data_bytes)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A cache that is too small for all jobs of its open streams.

    Attributes:
        job_bytes: What the job of the stream in question needs.
        part_bytes: How much of the cache it may use.
        needed_bytes: What all jobs need together.
        cache_bytes: The size of the cache.
        job_count: The number of jobs.
    """

    job_bytes: int
    part_bytes: int
    needed_bytes: int
    cache_bytes: int
    job_count: int


def needed_bytes(shuffled_bytes: int, data_bytes: int) -> int:
    """Return what a job needs that shuffles so much together, of so much data."""
    return min(shuffled_bytes + shuffled_bytes // _ARRIVING, data_bytes)


@dataclass(slots=True)
class _Job:
    """A job: how many streams read each of its lanes, and what it needs."""

    need: CacheNeed
    streams: Counter[int]
    # What tells its streams that it is short of memory.
    tells: dict[object, Callable[[], None]]

    @property
    def needed_bytes(self) -> int:
        return needed_bytes(self.need.lane_bytes * len(self.streams), self.need.data_bytes)

    @property
    def least_bytes(self) -> int:
        return min(self.need.lane_bytes * len(self.streams), self.need.data_bytes)


class CacheNeeds:
    """Keeps the books of one cache; safe for several threads.

    Args:
        cache_bytes: The size of the cache.
    """

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._jobs: dict[Hashable, _Job] = {}
        # Counted when a stream opens or ends: streams ask several times a second each, and with 256
        # streams working it out took 6 % of the server's processor time.
        self._needed_bytes = 0

    @property
    def needed_bytes(self) -> int:
        """Return the bytes that all jobs together need now."""
        return self._needed_bytes

    def part_bytes(self, job: Hashable) -> int:
        """Return how much of the cache a job may use; all of it if the job has no stream."""
        with self._lock:
            return self._part(self._needed(self._jobs), job)

    def would_fit(self, need: CacheNeed) -> bool:
        """Return whether a job would not be short of memory with another stream."""
        with self._lock:
            known = self._jobs.get(need.job)
            lanes = Counter(need.lanes) + (known.streams if known else Counter())
            job = _Job(need, lanes, {})
            needed = self._needed({**self._jobs, need.job: job})
            return self._fits(job, needed, self._part(needed, need.job))

    def shortage(self, job: Hashable) -> Shortage | None:
        """Return the shortage in which a job is now; None if it has what it needs, or is over."""
        with self._lock:
            return self._shortage(job, self._needed(self._jobs)) if job in self._jobs else None

    def spare_bytes(self, cache_bytes: int) -> int:
        """Return what each job may use of a part of the cache, beyond what all need."""
        needed_bytes = self._needed_bytes
        left_bytes = max(0, cache_bytes - needed_bytes - needed_bytes // _KEPT_BESIDE)
        return left_bytes // max(1, len(self._jobs))

    @contextmanager
    def held(
        self, need: CacheNeed | None, *, on_short: Callable[[], None] | None = None
    ) -> Iterator[Shortage | None]:
        """Count a stream while it is open.

        Args:
            need: What the stream needs; None for nothing.
            on_short: Called once if the stream's job is short of memory, now or later, from any
                thread.

        Yields:
            The shortage in which the stream's job is now; None if it has what it needs.
        """
        if need is None:
            yield None
            return
        stream = object()
        with self._lock:
            job = self._jobs.setdefault(need.job, _Job(need, Counter(), {}))
            job.streams.update(need.lanes)
            if on_short is not None:
                job.tells[stream] = on_short
            needed = self._counted()
            shortage = self._shortage(need.job, needed)
            tells = self._take_tells(needed)
        for tell in tells:
            tell()
        try:
            yield shortage
        finally:
            with self._lock:
                job.streams -= Counter(need.lanes)
                job.tells.pop(stream, None)
                if not job.streams:
                    del self._jobs[need.job]
                self._counted()

    def _counted(self) -> dict[Hashable, int]:
        """Return what each job needs, after a change, and keep the sum."""
        needed = self._needed(self._jobs)
        self._needed_bytes = sum(needed.values())
        return needed

    def _take_tells(self, needed: Mapping[Hashable, int]) -> list[Callable[[], None]]:
        """Take what tells the streams of jobs that are short of memory."""
        tells: list[Callable[[], None]] = []
        for name, job in self._jobs.items():
            if job.tells and not self._fits(job, needed, self._part(needed, name)):
                tells.extend(job.tells.values())
                job.tells.clear()
        return tells

    def _shortage(self, name: Hashable, needed: Mapping[Hashable, int]) -> Shortage | None:
        part_bytes = self._part(needed, name)
        if self._fits(self._jobs[name], needed, part_bytes):
            return None
        return Shortage(
            needed[name], part_bytes, sum(needed.values()), self._cache_bytes, len(needed)
        )

    @staticmethod
    def _fits(job: _Job, needed: Mapping[Hashable, int], part_bytes: int) -> bool:
        return min(needed[job.need.job], job.least_bytes) <= part_bytes

    @staticmethod
    def _needed(jobs: Mapping[Hashable, _Job]) -> dict[Hashable, int]:
        """Return what each job needs, or its part of that if others read the same data."""
        alone = {name: job.needed_bytes for name, job in jobs.items()}
        together: Counter[Hashable] = Counter()
        for name, job in jobs.items():
            together[job.need.data] += alone[name]
        return {
            name: alone[name]
            * min(together[job.need.data], job.need.data_bytes)
            // max(1, together[job.need.data])
            for name, job in jobs.items()
        }

    def _part(self, needed: Mapping[Hashable, int], job: Hashable) -> int:
        left_bytes = self._cache_bytes
        modest = sorted(needed, key=lambda name: needed[name])
        for place, name in enumerate(modest):
            part_bytes = left_bytes // (len(modest) - place)
            if needed[name] > part_bytes or name == job:
                # This one and all that need more get equal parts.
                return part_bytes
            left_bytes -= needed[name]
        return left_bytes
