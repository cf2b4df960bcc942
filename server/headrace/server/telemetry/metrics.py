"""The Prometheus metrics of a server."""

from __future__ import annotations

import platform
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
)

from headrace.server.shares import Budget
from headrace.server.telemetry.stream_counts import StreamCounts

_FETCH_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class _CallMetrics:
    """Metrics of calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._failed_calls = Counter(
            "headrace_failed_calls_total",
            "Calls that ended in an error, by reason, including refused and unary calls. A rise of "
            "UNAUTHENTICATED: somebody is trying tokens; of STREAM_LIMIT: add replicas.",
            ["reason"],
            registry=registry,
        )

    def call_failed(self, reason: str) -> None:
        """Count a call that ended in an error."""
        self._failed_calls.labels(reason).inc()


class _MemoryMetrics:
    """Metrics of the memory that streams hold; see `headrace.server.shares`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._held_bytes = Gauge(
            "headrace_payload_bytes",
            "Bytes of payload_bytes that streams use: rings, and batches being made or waiting to "
            "be sent. At payload_bytes streams wait for one another: fewer of them, smaller "
            "batches, or more payload_bytes by the formula of memory.",
            registry=registry,
        )

    def watch_memory(self, budget: Budget) -> None:
        """Show the part of a budget that streams hold."""
        self._held_bytes.set_function(lambda: budget.held_bytes)


class _CacheMetrics:
    """Metrics of the cache, in memory and in its folder."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._cache_hits = Counter(
            "headrace_cache_hits_total",
            "Blocks that were cached when a batch needed them. Flat while batches are sent: "
            "nothing is cached in time, see the misses.",
            registry=registry,
        )
        self._cache_misses = Counter(
            "headrace_cache_misses_total",
            "Blocks that were not cached when a batch needed them. Above a few per cent of the "
            "hits: the cache is smaller than what is shuffled together, or prefetching is too "
            "late.",
            registry=registry,
        )
        self._cache_bytes = Gauge(
            "headrace_cache_bytes",
            "Bytes of decoded blocks in the cache. Full is normal.",
            registry=registry,
        )
        self._cache_blocks = Gauge(
            "headrace_cache_blocks",
            "Blocks in the cache. Repeatedly falling and rising: the cache is too small for the "
            "jobs, which evict one another's blocks.",
            registry=registry,
        )
        self._disk_hits = Counter(
            "headrace_disk_cache_hits_total",
            "Blocks that were in cache_dir when they were not in memory. Near 0 after a restart: "
            "the folder is empty, or is not the previous one.",
            registry=registry,
        )
        self._disk_misses = Counter(
            "headrace_disk_cache_misses_total",
            "Blocks that were fetched from the store although there is a cache_dir. About as many "
            "as hits in every epoch but the first: cache_dir_bytes is half of the data.",
            registry=registry,
        )
        self._disk_bytes = Gauge(
            "headrace_disk_cache_bytes",
            "Bytes of files in cache_dir. Full is normal; far below cache_dir_bytes after an "
            "epoch: its disk is full or broken, and the log says so.",
            registry=registry,
        )

    def used(self, *, hits: int, misses: int) -> None:
        """Count blocks that were cached, or not, when a batch needed them."""
        self._cache_hits.inc(hits)
        if misses:
            self._cache_misses.inc(misses)

    def held(self, *, used_bytes: int, block_count: int) -> None:
        """Note the current size of the cache."""
        self._cache_bytes.set(used_bytes)
        self._cache_blocks.set(block_count)

    def disk_used(self, *, is_hit: bool) -> None:
        """Count a block that was in the cache's folder, or not."""
        (self._disk_hits if is_hit else self._disk_misses).inc()

    def disk_held(self, *, used_bytes: int) -> None:
        """Note the current size of the cache's folder."""
        self._disk_bytes.set(used_bytes)


class _StoreMetrics:
    """Metrics of reads from the store."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._fetch_seconds = Histogram(
            "headrace_store_fetch_seconds",
            "Time of one read: to fetch, verify and decode a block, or some neighbouring ones, "
            "from cache_dir too. A rise means a slow or throttling store.",
            ["dataset"],
            buckets=_FETCH_SECONDS,
            registry=registry,
        )
        self._fetched = Counter(
            "headrace_store_fetched_blocks_total",
            "Blocks fetched, from cache_dir too. More than the dataset has in an epoch: the cache "
            "is smaller than what is shuffled together. About as many as reads: neighbours are "
            "seldom needed together, so each costs a request; larger prefetch_bytes may help.",
            ["dataset"],
            registry=registry,
        )
        self._fetch_errors = Counter(
            "headrace_store_fetch_errors_total",
            "Reads of blocks that failed, by reason. SHARD_CORRUPT: restore or convert the data "
            "again; others: check the store and its credentials.",
            ["dataset", "reason"],
            registry=registry,
        )

    def read(self, dataset: str, *, seconds: float, blocks: int, reason: str) -> None:
        """Count a read from the store: its blocks, and the reason if it failed."""
        self._fetched.labels(dataset).inc(blocks)
        self._fetch_seconds.labels(dataset).observe(seconds)
        if reason:
            self._fetch_errors.labels(dataset, reason).inc()


_GROUPS = (
    _CallMetrics,
    _MemoryMetrics,
    _CacheMetrics,
    _StoreMetrics,
)


class Metrics(_CallMetrics, _MemoryMetrics, _CacheMetrics, _StoreMetrics):
    """The metrics of one server, in a registry of its own.

    Attributes:
        registry: The registry with all metrics.
        streams: The metrics of streams.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.streams = StreamCounts(self.registry)
        for group in _GROUPS:
            group.__init__(self, self.registry)
        Info(
            "headrace_build",
            "Versions of the running software. More than one version for long: a rolling "
            "update is stuck.",
            registry=self.registry,
        ).info(_versions())
        # The process's own metrics: memory, to compare with the formula in docs/limits.md,
        # processor time, files.
        ProcessCollector(registry=self.registry)

    def read(self, dataset: str, *, seconds: float, blocks: int, reason: str) -> None:
        """Count a read from the store, and what its thread spent its time on."""
        super().read(dataset, seconds=seconds, blocks=blocks, reason=reason)
        self.streams.reads.note(dataset, seconds)


def _versions() -> dict[str, str]:
    found = {"version": version("headrace"), "python": platform.python_version()}
    return found | {name: version(name) for name in ("grpcio", "pyarrow")}
