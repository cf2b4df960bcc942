"""Send spans of streams and of reads from stores to an OpenTelemetry collector.

Spans are created afterwards, from times that are measured anyway, so a server without tracing has
no overhead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

# How long the end of a server waits for the last spans to be sent.
_FLUSH_S = 2.0

# Reasons for ending that are not errors.
_GOOD = frozenset({"", "CANCELLED", "DRAINING", "OK", "REBALANCE"})


class Tracing:
    """Send spans; safe for several threads."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headrace.server", version("headrace"))

    def read(self, dataset: str, *, seconds: float, blocks: int, reason: str) -> None:
        """Send the span of a read from the store."""
        fields = {"dataset": dataset, "blocks": blocks}
        self._send("headrace.read_block", seconds, fields, reason=reason)

    def streamed(
        self,
        fields: Mapping[str, object],
        metadata: Iterable[tuple[str, str | bytes]],
        *,
        seconds: float,
        reason: str,
    ) -> None:
        """Send the span of a stream that has ended.

        Args:
            fields: The fields of its log event.
            metadata: The metadata of the call; its ``traceparent`` names the span that the stream
                is part of.
            seconds: How long the stream was open.
            reason: Why it ended.
        """
        carried = {key: value for key, value in metadata if isinstance(value, str)}
        self._send("headrace.stream", seconds, fields, reason=reason, context=_context(carried))

    def close(self) -> None:
        """Send the remaining spans and stop; spans that take longer than `_FLUSH_S` are lost."""
        # Without an answer from the collector, both calls take the ten seconds of an export.
        ending = threading.Thread(target=self._end, name="headrace-last-spans", daemon=True)
        ending.start()
        ending.join(_FLUSH_S)

    def _end(self) -> None:
        self._provider.force_flush(round(_FLUSH_S * 1000))
        self._provider.shutdown()

    def _send(
        self,
        name: str,
        seconds: float,
        fields: Mapping[str, object],
        *,
        reason: str,
        context: Context | None = None,
    ) -> None:
        from opentelemetry.trace import SpanKind, StatusCode  # noqa: PLC0415 - of the extra

        end = time.time_ns()
        span = self._tracer.start_span(
            name,
            context=context,
            kind=SpanKind.SERVER if context is not None else SpanKind.CLIENT,
            start_time=end - round(seconds * 1e9),
            attributes={f"headrace.{key}": _plain(value) for key, value in fields.items()},
        )
        if reason not in _GOOD:
            span.set_status(StatusCode.ERROR, reason)
        span.end(end)


def start_tracing(endpoint: str) -> Tracing | None:
    """Return an object that sends spans to a collector at ``http://host:port``; None without one.

    Raises:
        ConfigurationError: The packages are not installed.
    """
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"otlp_endpoint is {endpoint!r}, and {error.name} is not installed; install it with "
            "pip install 'headrace[otel]', or leave the setting out"
        ) from error
    resource = Resource.create({"service.name": "headrace", "service.version": version("headrace")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Tracing(provider)


def _context(carried: Mapping[str, str]) -> Context:
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - of the extra
        TraceContextTextMapPropagator,
    )

    return TraceContextTextMapPropagator().extract(carried)


def _plain(value: object) -> str | int | float:
    return value if isinstance(value, str | int | float) else str(value)
