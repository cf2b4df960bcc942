"""The metrics of rings."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class RingMetrics:
    """Counts the rings of one server.

    Args:
        registry: Where the metrics are added.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open_rings = Gauge(
            "headrace_open_rings",
            "Rings open now: streams whose batches lie in shared memory. Fewer than the streams "
            "over the unix socket: their log lines and ds.stats() say why.",
            registry=registry,
        )
        self._ring_bytes = Gauge(
            "headrace_ring_bytes",
            "Bytes of all open rings, which count as the server's memory once written. Near what "
            "the container has besides the cache: new rings become smaller, see the log.",
            registry=registry,
        )
        self._ring_batches = Counter(
            "headrace_ring_batches_total",
            "Batches of streams with a ring, by way: in the ring, or inline for lack of room. Many "
            "inline: trainers keep batches; ask for larger rings, or keep fewer.",
            ["way"],
            registry=registry,
        )
        self._ring_placed = (
            self._ring_batches.labels("inline"),
            self._ring_batches.labels("ring"),
        )
        self._ring_full = Counter(
            "headrace_ring_full_seconds_total",
            "Seconds that streams waited for room in their rings. A rate near the number of open "
            "rings is good: the server is faster than the trainers.",
            registry=registry,
        )

    def changed(self, rings: int, size: int) -> None:
        """Count rings that were made, or freed if the number is negative."""
        self._open_rings.inc(rings)
        self._ring_bytes.inc(size)

    def placed(self, *, is_in_ring: bool) -> None:
        """Count a batch of a stream with a ring: in the ring, or inline."""
        self._ring_placed[is_in_ring].inc()

    def blocked(self, *, seconds: float) -> None:
        """Count time during which a ring was full."""
        self._ring_full.inc(seconds)
