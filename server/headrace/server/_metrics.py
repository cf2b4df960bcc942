"""What an operator sees of a server, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_FETCH_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_WAIT_SECONDS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._open_streams = self._gauge(
            "headrace_open_streams",
            "Streams open now. At max_streams new ones are refused: add replicas.",
        )
        self._ended_streams = Counter(
            "headrace_ended_streams_total",
            "Streams that ended, by reason (OK, CANCELLED or the reason of the error). A rise of "
            "SHARD_CORRUPT, STORE_UNAVAILABLE or INTERNAL needs a person.",
            ["dataset", "reason"],
            registry=self.registry,
        )
        self._batches = self._sent(
            "batches", "Batches sent. Flat while streams are open: trainers or the store stand."
        )
        self._samples = self._sent("samples", "Samples sent, pads included.")
        self._payload_bytes = self._sent(
            "payload_bytes", "Payload bytes sent. Near the link's speed the network is the limit."
        )
        self._starved = Histogram(
            "headrace_store_wait_seconds",
            "Time that a batch waited for blocks that were not cached. Much above a millisecond: "
            "the store is too slow, or the cache or prefetch_bytes too small.",
            ["dataset"],
            buckets=_WAIT_SECONDS,
            registry=self.registry,
        )
        self._cache_hits = self._counter(
            "headrace_cache_hits_total", "Blocks that were cached when a batch needed them."
        )
        self._cache_misses = self._counter(
            "headrace_cache_misses_total",
            "Blocks that were not cached when a batch needed them. Above a few per cent of the "
            "hits: the cache is smaller than the windows in use, or prefetching is too late.",
        )
        self._cache_bytes = self._gauge(
            "headrace_cache_bytes", "Bytes of decoded blocks in the cache. Full is normal."
        )
        self._cache_blocks = self._gauge("headrace_cache_blocks", "Blocks in the cache.")
        self._disk_hits = self._counter(
            "headrace_disk_cache_hits_total",
            "Blocks that were in cache_dir when they were not in memory.",
        )
        self._disk_misses = self._counter(
            "headrace_disk_cache_misses_total",
            "Blocks that were fetched from the store though there is a cache_dir. About the hits' "
            "number in every epoch but the first: cache_dir_bytes is half of the data.",
        )
        self._disk_bytes = self._gauge(
            "headrace_disk_cache_bytes",
            "Bytes of files in cache_dir. Full is normal; far below cache_dir_bytes after an "
            "epoch: its disk is full or broken, and the log says so.",
        )
        self._fetch_seconds = Histogram(
            "headrace_store_fetch_seconds",
            "Time to fetch, verify and decode one block. A rise means a slow or throttling store.",
            buckets=_FETCH_SECONDS,
            registry=self.registry,
        )
        self._fetch_errors = Counter(
            "headrace_store_fetch_errors_total",
            "Blocks that could not be fetched, by reason. SHARD_CORRUPT: restore or convert the "
            "data again; others: look at the store and its credentials.",
            ["reason"],
            registry=self.registry,
        )

    def stream_opened(self) -> None:
        """Count a stream."""
        self._open_streams.inc()

    def stream_ended(self, dataset: str, reason: str) -> None:
        """Count the end of a stream."""
        self._open_streams.dec()
        self._ended_streams.labels(dataset, reason).inc()

    def sent(self, dataset: str, *, samples: int, payload_bytes: int) -> None:
        """Count a batch."""
        self._batches.labels(dataset).inc()
        self._samples.labels(dataset).inc(samples)
        self._payload_bytes.labels(dataset).inc(payload_bytes)

    def starved(self, dataset: str, *, seconds: float) -> None:
        """Note how long a batch waited for its store."""
        self._starved.labels(dataset).observe(seconds)

    def used(self, *, hits: int, misses: int) -> None:
        """Count blocks that were cached, or not, when a batch needed them."""
        self._cache_hits.inc(hits)
        self._cache_misses.inc(misses)

    def held(self, *, used_bytes: int, block_count: int) -> None:
        """Note what the cache holds now."""
        self._cache_bytes.set(used_bytes)
        self._cache_blocks.set(block_count)

    def disk_used(self, *, is_hit: bool) -> None:
        """Count a block that was in the cache's folder, or not."""
        (self._disk_hits if is_hit else self._disk_misses).inc()

    def disk_held(self, *, used_bytes: int) -> None:
        """Note what the cache's folder holds now."""
        self._disk_bytes.set(used_bytes)

    def fetched(self, *, seconds: float, reason: str) -> None:
        """Count a fetch; the reason of its failure, or nothing."""
        self._fetch_seconds.observe(seconds)
        if reason:
            self._fetch_errors.labels(reason).inc()

    def _sent(self, what: str, text: str) -> Counter:
        return Counter(f"headrace_sent_{what}_total", text, ["dataset"], registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)
