"""Tell that the cache is smaller than what its jobs shuffle together.

Batches are the same then, only slower, and the bill of the store is higher.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headrace.server.telemetry.logs import event
from headrace.v1 import shard_service_pb2 as pb

_log = logging.getLogger(__name__)

_EVERY_S = 600.0
"""Seconds between two warnings about a dataset (arbitrary): streams come and go."""

_MIB = 1 << 20


class Shortage(Protocol):
    """What is warned of; `headrace.server.cache.needs` describes the attributes."""

    @property
    def job_bytes(self) -> int: ...
    @property
    def part_bytes(self) -> int: ...
    @property
    def needed_bytes(self) -> int: ...
    @property
    def cache_bytes(self) -> int: ...
    @property
    def job_count(self) -> int: ...


def tell_shortage(start: pb.StreamStart, shortage: Shortage) -> None:
    """Tell a client of its own job's shortage, and nothing of other jobs."""
    start.cache_shortage.job_bytes = shortage.job_bytes
    start.cache_shortage.part_bytes = shortage.part_bytes


class ShortageWarnings:
    """Warns of shortages, of each dataset at most once in ten minutes; safe for several threads.

    Args:
        now: Returns seconds of a monotonic clock.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._said_at: dict[str, float] = {}

    def warn(self, shortage: Shortage, *, dataset: str) -> None:
        """Warn of a shortage that a stream of a dataset has met."""
        with self._lock:
            now = self._now()
            if now < self._said_at.get(dataset, -_EVERY_S) + _EVERY_S:
                return
            self._said_at[dataset] = now
        _log.warning(
            "the cache is smaller than what is shuffled together, so blocks are fetched several "
            "times; raise cache_bytes to needed_mib, or lower shuffle_bytes or lanes in the jobs",
            extra=event(
                dataset=dataset,
                job_mib=-(-shortage.job_bytes // _MIB),
                part_mib=shortage.part_bytes // _MIB,
                jobs=shortage.job_count,
                needed_mib=-(-shortage.needed_bytes // _MIB),
                cache_mib=shortage.cache_bytes // _MIB,
            ),
        )
