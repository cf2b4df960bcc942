"""The current state of a server, for its page: open streams, and sums of counters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from prometheus_client import Metric

Status = dict[str, Any]

_TOLD: Final = frozenset(
    {
        "headrace_open_streams",
        "headrace_failed_calls_total",
        "headrace_sent_samples_total",
        "headrace_sent_payload_bytes_total",
        "headrace_cache_hits_total",
        "headrace_cache_misses_total",
        "headrace_cache_bytes",
        "headrace_disk_cache_bytes",
        "headrace_payload_bytes",
        "headrace_store_fetch_seconds_count",
        "headrace_store_fetch_seconds_sum",
        "headrace_store_fetched_blocks_total",
        "headrace_store_fetch_errors_total",
    }
)


def status_of(metrics: Iterable[Metric], streams: Sequence[dict[str, Any]]) -> Status:
    """Return the current state of a server as JSON values.

    Args:
        metrics: The metrics of the server.
        streams: Rows of `StreamCounts.rows`.
    """
    counted = [
        [
            sample.name,
            sample.labels.get("reason", ""),
            sample.labels.get("dataset", ""),
            sample.value,
        ]
        for metric in metrics
        for sample in metric.samples
        if sample.name in _TOLD
    ]
    return {"streams": list(streams), "counted": counted}
