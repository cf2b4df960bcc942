"""A real gRPC server whose streams follow a script.

A fault is a generator that yields good messages and then fails.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc
from support.wire import FINGERPRINT

Script = Callable[[pb.ReadBatchesRequest, grpc.ServicerContext], Iterator[pb.ReadBatchesResponse]]
Attach = Callable[
    [pb.AttachTransportRequest, grpc.ServicerContext], Iterator[pb.AttachTransportResponse]
]
Describe = Callable[[pb.GetDatasetRequest, grpc.ServicerContext], None]
"""Is called before a dataset is described, and may fail."""


class ScriptedService(rpc.ShardServiceServicer):
    """Answer each stream by the next script; the last one serves for all that follow."""

    # No script needs them.
    ListDatasets: Any = None
    GetBatch: Any = None
    GetSamples: Any = None
    ExplainBatch: Any = None
    FindSamples: Any = None

    def __init__(self, scripts: Sequence[Script], *, sample_count: int = 12) -> None:
        """Take the scripts in the order of the streams."""
        self.scripts = list(scripts)
        self.requests: list[pb.ReadBatchesRequest] = []
        self.address = ""
        self.dataset = pb.Dataset(fingerprint=FINGERPRINT, sample_count=sample_count)
        self.describe: Describe | None = None
        self.attach: Attach | None = None
        self.attached: list[pb.AttachTransportRequest] = []
        self.stop: Callable[[], object] = lambda: None

    def GetDataset(  # noqa: N802 - the name of the RPC
        self, request: pb.GetDatasetRequest, context: grpc.ServicerContext
    ) -> pb.GetDatasetResponse:
        """Describe the hand-made dataset."""
        if self.describe is not None:
            self.describe(request, context)
        dataset = pb.Dataset()
        dataset.CopyFrom(self.dataset)
        dataset.name = request.name
        return pb.GetDatasetResponse(dataset=dataset)

    def ReadBatches(  # noqa: N802
        self, request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        """Follow the script."""
        self.requests.append(request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        yield from script(request, context)

    def AttachTransport(  # noqa: N802
        self, request: pb.AttachTransportRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.AttachTransportResponse]:
        """Follow the script for transports; without one know of none, as older servers."""
        if self.attach is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        self.attached.append(request)
        yield from self.attach(request, context)


@contextmanager
def scripted_server(
    *scripts: Script,
    sample_count: int = 12,
    listen: str = "127.0.0.1:0",
    describe: Describe | None = None,
) -> Iterator[ScriptedService]:
    """Serve scripts, at a free port if no other address is named."""
    service = ScriptedService(scripts, sample_count=sample_count)
    service.describe = describe
    server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="scripted"))
    rpc.add_ShardServiceServicer_to_server(service, server)
    port = server.add_insecure_port(listen)
    service.address = f"127.0.0.1:{port}" if listen.endswith(":0") else listen
    service.stop = lambda: server.stop(grace=None).wait(5)
    server.start()
    try:
        yield service
    finally:
        server.stop(grace=None).wait(5)


def fail(
    context: grpc.ServicerContext,
    code: grpc.StatusCode,
    reason: str | None,
    *,
    retry_after_s: float | None = None,
    **metadata: str,
) -> NoReturn:
    """End a call as a headrace server does; ``reason=None`` ends it as a proxy would."""
    details: list[AnyMessage] = []
    if reason is not None:
        details.append(
            _packed(
                error_details_pb2.ErrorInfo(reason=reason, domain="headrace", metadata=metadata)
            )
        )
    if retry_after_s is not None:
        delay = Duration(nanos=int(retry_after_s * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    status = status_pb2.Status(code=code.value[0], message=f"scripted {reason}", details=details)
    if details:
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, f"scripted {reason}")
    raise AssertionError("abort raises")


def _packed(detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> AnyMessage:
    message = AnyMessage()
    message.Pack(detail)
    return message
