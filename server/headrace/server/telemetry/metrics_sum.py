"""Add up the metrics of a server's processes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

_Key = tuple[str, tuple[tuple[str, str], ...]]

# The kinds of metrics that count after their process has ended.
_LASTING = frozenset({"counter", "histogram", "summary"})
_OF_OPEN_STREAMS = "headrace_stream_"


class MetricsSum(Collector):
    """Add up what processes report; counters keep their values when a process ends.

    Those of single streams end with it, as they do when a stream ends.
    Facts about the build, whose names end in ``_info``, and times of starts are not added. Safe for
    several threads.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._lock = threading.Lock()
        self._sources: dict[object, CollectorRegistry | Sequence[Metric]] = {}
        self._ended: list[Metric] = []

    def add_registry(self, registry: CollectorRegistry) -> None:
        """Count a registry of this process."""
        with self._lock:
            self._sources[registry] = registry

    def report(self, process: object, metrics: Sequence[Metric]) -> None:
        """Note the current values of a process."""
        with self._lock:
            self._sources[process] = metrics

    def end(self, process: object) -> None:
        """Keep the counters of a process that has ended."""
        with self._lock:
            last = self._sources.pop(process, ())
            lasting = [
                metric
                for metric in _metrics(last)
                if metric.type in _LASTING and not metric.name.startswith(_OF_OPEN_STREAMS)
            ]
            self._ended = list(_added([*self._ended, *lasting]))

    def collect(self) -> Iterable[Metric]:
        """Return the sum."""
        with self._lock:
            parts = [*self._sources.values(), self._ended]
        return list(_added([metric for part in parts for metric in _metrics(part)]))


def _metrics(part: CollectorRegistry | Sequence[Metric]) -> Iterable[Metric]:
    return part.collect() if isinstance(part, CollectorRegistry) else part


def _added(metrics: Sequence[Metric]) -> Iterator[Metric]:
    by_name: dict[str, list[Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric.name, []).append(metric)
    for name, parts in by_name.items():
        whole = Metric(name, parts[0].documentation, parts[0].type, parts[0].unit)
        values: dict[_Key, float] = {}
        for sample in (sample for part in parts for sample in part.samples):
            key = (sample.name, tuple(sorted(sample.labels.items())))
            if sample.name.endswith(("_created", "_start_time_seconds")):
                values[key] = min(values.get(key, sample.value), sample.value)
            elif sample.name.endswith("_info"):
                values[key] = sample.value
            else:
                values[key] = values.get(key, 0.0) + sample.value
        for (sample_name, labels), value in values.items():
            whole.add_sample(sample_name, dict(labels), value)
        yield whole
