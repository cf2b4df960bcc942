"""The metrics of compressed streams."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class Lz4Metrics:
    """Counts the messages of compressed streams.

    Args:
        registry: Where the metrics are added.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._before = Counter(
            "headrace_lz4_message_bytes_total",
            "Bytes of messages of streams with Transport('lz4'), before compression. None: no "
            "client asks for it, or none has been let in.",
            registry=registry,
        )
        self._after = Counter(
            "headrace_lz4_sent_bytes_total",
            "Bytes of the same messages as they are sent. As many as before compression: the data "
            "does not shrink, and the default transport costs less.",
            registry=registry,
        )

    def sent(self, before: int, after: int) -> None:
        """Count a message by its bytes."""
        self._before.inc(before)
        self._after.inc(after)
