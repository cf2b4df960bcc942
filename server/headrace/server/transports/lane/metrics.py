"""The metrics of lanes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class LaneMetrics:
    """Counts the lanes of one server.

    Args:
        registry: Where the metrics are added.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge(
            "headrace_open_lanes",
            "Lanes open now: streams whose batches come over a connection beside gRPC's. Fewer "
            "than the streams over TCP: ds.stats() of their clients says why.",
            registry=registry,
        )
        self._sent = Counter(
            "headrace_lane_sent_bytes_total",
            "Bytes sent over lanes. None while streams are open: clients do not ask for lanes, or "
            "cannot reach the port.",
            registry=registry,
        )
        self._refused = Counter(
            "headrace_lane_refused_total",
            "Connections to the lane that were closed before they had a stream, by reason: late "
            "(nothing came in time), crowded (too many came at once), hello (not a client of "
            "ours), ticket (unknown or used), caller (not the one of the stream). Many: somebody "
            "scans or attacks the port.",
            ["reason"],
            registry=registry,
        )

    def opened(self, count: int) -> None:
        """Count lanes that were opened, or closed if the number is negative."""
        self._open.inc(count)

    def sent(self, size: int) -> None:
        """Count bytes."""
        self._sent.inc(size)

    def refused(self, reason: str) -> None:
        """Count a connection that was closed."""
        self._refused.labels(reason).inc()
