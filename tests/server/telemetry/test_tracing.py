"""Tests of traces, as a collector receives them."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from headrace.server.telemetry.tracing import start_tracing
from server.conftest import StartServer
from support.served import TIMEOUT_S, epoch_request, stub_of

# How long the exporter waits for an answer, by default.
_EXPORT_S = 10.0
_TRACE, _PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class _Collector(otlp_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.lock = threading.Lock()

    def Export(  # noqa: N802 - the name of the RPC
        self, request: otlp.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> otlp.ExportTraceServiceResponse:
        """Take spans."""
        del context
        with self.lock:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        return otlp.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[str, _Collector]]:
    """A collector and its address."""
    kept = _Collector()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        otlp_grpc.add_TraceServiceServicer_to_server(kept, server)  # type: ignore[no-untyped-call]  # generated without types
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"http://127.0.0.1:{port}", kept
        server.stop(0).wait(10)


def _fields(span: Span) -> dict[str, object]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in span.attributes
    }


def test_streams_and_reads_are_spans(start: StartServer, collector: tuple[str, _Collector]) -> None:
    """A stream is a child of its caller's span, with what the log says; reads are spans too."""
    endpoint, kept = collector
    running = start(otlp_endpoint=endpoint)
    request = epoch_request(dataset="rich", global_batch_size=500)
    metadata = (("traceparent", f"00-{_TRACE}-{_PARENT}-01"),)

    for _ in stub_of(running.channel).ReadBatches(request, timeout=TIMEOUT_S, metadata=metadata):
        pass
    running.server.stop()

    (stream,) = [span for span in kept.spans if span.name == "headrace.stream"]
    reads = [span for span in kept.spans if span.name == "headrace.read_block"]
    fields = _fields(stream)
    assert (_TRACE, _PARENT) == (stream.trace_id.hex(), stream.parent_span_id.hex())
    assert ("rich", "OK", 2, 1000) == tuple(
        fields[f"headrace.{key}"] for key in ("dataset", "reason", "batches", "samples")
    )
    assert Status.STATUS_CODE_ERROR != stream.status.code
    assert reads
    assert all(_fields(span)["headrace.dataset"] == "rich" for span in reads)
    assert all(span.start_time_unix_nano < span.end_time_unix_nano for span in (stream, *reads))


_PROGRAM = """
import sys
from headrace.server import ServerConfig, start_server
with start_server(ServerConfig(datasets={"d": sys.argv[1]}, listen="127.0.0.1:0")):
    print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end() -> None:
    """The end of a server waits two seconds for its last spans, not the ten of an export."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracing = start_tracing(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert tracing is not None
        tracing.read("d", seconds=0.1, blocks=1, reason="")
        began = time.monotonic()
        tracing.close()

        assert time.monotonic() - began < _EXPORT_S - 2


def test_without_a_collector_nothing_is_imported(rich_url: str) -> None:
    """A server that sends no traces does not load what would send them."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, rich_url],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )

    assert "[]" == done.stdout.strip()
