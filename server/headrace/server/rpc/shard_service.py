"""The RPCs of the service, and how each is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message

from headrace.server.access.callers import Caller
from headrace.server.datasets.served import Served
from headrace.server.front.calls import Call, Method
from headrace.server.front.methods import CallPools, streaming, unary
from headrace.server.plan.stream_request import ReadRequest
from headrace.server.stream.explain import explain
from headrace.server.stream.find_samples import find_samples
from headrace.server.stream.order_plugs import Asker
from headrace.server.stream.parts import Parts
from headrace.server.stream.schedule import Schedule
from headrace.server.stream.stage_plugs import open_stages
from headrace.server.stream.stream_calls import StreamCalls
from headrace.server.stream.stream_setup import batch_contents, samples_contents, stream_contents
from headrace.server.stream.transport_plugs import Transports
from headrace.v1 import shard_service_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["ShardService"].full_name

# Requests of streams that stay open.
_LONG = (pb.ReadBatchesRequest, pb.AttachTransportRequest)

# How long calls wait for a filter before they are told to retry; small datasets are filtered by
# then. Unary calls have few threads.
_UNARY_WAIT_S = 0.25

_Request = TypeVar("_Request", bound=Message)


class ShardService:
    """Answers the RPCs of ``headrace.v1.ShardService``.

    Args:
        parts: What it shares with other parts of the server.
        pools: The pools of threads.
        transports: The transports besides gRPC.
    """

    def __init__(self, parts: Parts, *, pools: CallPools, transports: Transports) -> None:
        config, metrics = parts.config, parts.metrics
        self._catalog = parts.catalog
        self._streams = parts.streams
        self._pools = pools
        self._transports = transports
        self._schedule = Schedule(config, cache=parts.cache, streams=parts.streams)
        self._stages = open_stages(config, metrics, self._schedule)
        self._catalog.derive = self._stages.derived
        self._calls = StreamCalls(parts, self._schedule, self._stages)

    def close(self) -> None:
        """Stop the threads that work for calls; all calls must have ended."""
        self._stages.close()
        self._schedule.close()

    def methods(self) -> dict[str, Method]:
        """Return the RPCs by their full names."""
        questions: dict[str, tuple[type[Any], Callable[[Any, Caller], Message]]] = {
            "ListDatasets": (pb.ListDatasetsRequest, self._list_datasets),
            "GetDataset": (pb.GetDatasetRequest, self._get_dataset),
            "ExplainBatch": (pb.ExplainBatchRequest, self._explain_batch),
            "FindSamples": (pb.FindSamplesRequest, self._find_samples),
        }
        streams: dict[str, tuple[type[Any], Callable[[Any, Call], Iterator[bytes]]]] = {
            "ReadBatches": (pb.ReadBatchesRequest, self._read_batches),
            "AttachTransport": (pb.AttachTransportRequest, self._attach),
            "GetBatch": (pb.GetBatchRequest, self._get_batch),
            "GetSamples": (pb.GetSamplesRequest, self._get_samples),
        }
        found = {
            name: unary(kind, self._pools.unary, do, self._turn)
            for name, (kind, do) in questions.items()
        }
        found |= {name: self._stream(kind, do) for name, (kind, do) in streams.items()}
        return {f"/{SERVICE}/{name}": method for name, method in found.items()}

    def _list_datasets(
        self, request: pb.ListDatasetsRequest, caller: Caller
    ) -> pb.ListDatasetsResponse:
        seen = self._catalog.seen_by(caller)
        return seen.page(size=request.page_size, token=request.page_token)

    def _get_dataset(self, request: pb.GetDatasetRequest, caller: Caller) -> pb.GetDatasetResponse:
        served = self._catalog.seen_by(caller).served(request.name).version(request.fingerprint)
        if request.stages:
            served = self._stages.narrowed(served, request.stages, Asker(caller, _UNARY_WAIT_S))
        return pb.GetDatasetResponse(dataset=served.to_proto(), classes=served.classes)

    def _explain_batch(
        self, request: pb.ExplainBatchRequest, caller: Caller
    ) -> pb.ExplainBatchResponse:
        read, served = self._find(request.batch, caller)
        with self._schedule.question_turn(caller.name):
            return explain(read, served, stages=self._stages)

    def _find_samples(
        self, request: pb.FindSamplesRequest, caller: Caller
    ) -> pb.FindSamplesResponse:
        read, served = self._find(request.batch, caller)
        with self._schedule.question_turn(caller.name):
            return find_samples(request, read, served, stages=self._stages)

    def _find(self, batch: pb.GetBatchRequest, caller: Caller) -> tuple[ReadRequest, Served]:
        return self._calls.find(self._stages.of_batch, batch, caller, _UNARY_WAIT_S)

    def _read_batches(self, request: pb.ReadBatchesRequest, call: Call) -> Iterator[bytes]:
        return self._calls.messages(self._stages.of_batches, stream_contents, request, call)

    def _get_batch(self, request: pb.GetBatchRequest, call: Call) -> Iterator[bytes]:
        return self._calls.messages(self._stages.of_batch, batch_contents, request, call)

    def _get_samples(self, request: pb.GetSamplesRequest, call: Call) -> Iterator[bytes]:
        setup = partial(samples_contents, request)
        return self._calls.messages(self._stages.of_samples, setup, request, call)

    def _turn(self, call: Call) -> AbstractContextManager[object]:
        return self._schedule.setup_turn(call.caller.name)

    def _stream(
        self, kind: type[_Request], messages: Callable[[_Request, Call], Iterator[bytes]]
    ) -> Method:
        def place(call: Call) -> tuple[Caller, str, str]:
            # Single batches end soon. All clients of a unix socket look like one.
            is_limited = kind in _LONG and call.host != "unix"
            return call.caller, call.host, call.peer if is_limited else ""

        return streaming(
            kind,
            self._pools.streams,
            # Messages are bytes already; see headrace.server.batch.targets.
            messages,
            sender=self._schedule.sender,
            check=lambda call: self._streams.check(*place(call)),
            admit=lambda call: self._streams.admit(*place(call)),
            turn=self._turn,
        )

    def _attach(self, message: pb.AttachTransportRequest, call: Call) -> Iterator[bytes]:
        attach = self._transports.attach(message.transport, call, self._schedule.sender)
        read = self._stages.of_batches
        return self._calls.messages(read, stream_contents, message.read, call, attach)
