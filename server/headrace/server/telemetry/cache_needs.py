"""Work out how much cache the open streams need, and warn if it is smaller.

With less memory than its jobs shuffle together, a server fetches blocks several times. Nothing else
shows it: batches are the same, only slower, and the store's bill is higher.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.server.telemetry.logs import event

_log = logging.getLogger(__name__)

_EVERY_S = 600.0
"""Seconds between two warnings (arbitrary): streams come and go, but the cache stays the same."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """The cache that a stream needs together with the others of its job.

    Attributes:
        job: Identifies the job.
        lanes: The lanes that it reads.
        lane_bytes: Raw bytes that each lane shuffles together.
    """

    job: Hashable
    lanes: range
    lane_bytes: int


class CacheNeeds:
    """Add up what the jobs of the open streams need; safe for several threads.

    Args:
        cache_bytes: The size of the cache.
        now: Returns seconds of a monotonic clock.
    """

    def __init__(self, cache_bytes: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._cache_bytes = cache_bytes
        self._now = now
        self._lock = threading.Lock()
        # The number of streams that read each lane of each job, and what that lane needs.
        self._streams: Counter[tuple[Hashable, int]] = Counter()
        self._bytes: dict[tuple[Hashable, int], int] = {}
        self._said_at = -_EVERY_S

    @property
    def needed_bytes(self) -> int:
        """Return the bytes that all jobs together need now."""
        return sum(self._bytes.values())

    def spare_bytes(self, cache_bytes: int) -> int:
        """Return what each job may use of a part of the cache, beyond 1.5 times what all need.

        Samples take more memory than their raw bytes: a short text, for example, 16 bytes more.
        """
        with self._lock:
            jobs = len({job for job, _ in self._bytes})
            kept_bytes = sum(self._bytes.values()) * 3 // 2
            return max(0, cache_bytes - kept_bytes) // max(1, jobs)

    @contextmanager
    def held(self, need: CacheNeed | None, *, dataset: str) -> Iterator[None]:
        """Count a stream while it is open, and warn if there is too little for all.

        Args:
            need: What the stream needs; None for nothing.
            dataset: The name of the dataset that it reads.
        """
        if need is None:
            yield
            return
        lanes = [(need.job, lane) for lane in need.lanes]
        self._begin(lanes, need.lane_bytes, dataset)
        try:
            yield
        finally:
            self._end(lanes)

    def _begin(self, lanes: list[tuple[Hashable, int]], lane_bytes: int, dataset: str) -> None:
        with self._lock:
            self._streams.update(lanes)
            self._bytes.update(dict.fromkeys(lanes, lane_bytes))
            needed_bytes, now = self.needed_bytes, self._now()
            if needed_bytes <= self._cache_bytes or now < self._said_at + _EVERY_S:
                return
            self._said_at = now
        _log.warning(
            "the cache is smaller than what is shuffled together, so blocks are fetched several "
            "times; raise cache_bytes, or lower shuffle_bytes or lanes in the jobs",
            extra=event(
                dataset=dataset,
                lane_mib=-(-lane_bytes // _MIB),
                lanes=len(lanes),
                needed_mib=-(-needed_bytes // _MIB),
                cache_mib=self._cache_bytes // _MIB,
            ),
        )

    def _end(self, lanes: list[tuple[Hashable, int]]) -> None:
        with self._lock:
            self._streams.subtract(lanes)
            for lane in lanes:
                if not self._streams[lane]:
                    del self._streams[lane], self._bytes[lane]
