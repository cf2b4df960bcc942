"""Get one batch from a server, without a stream."""

from __future__ import annotations

import threading

import grpc

from headrace.client.feeds.grpc_feed import end_call
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.status import error_from_call
from headrace.client.wire.assembler import Allocate, BatchEvent, StreamAssembler
from headrace.client.wire.bounds import Bounds
from headrace.errors import StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb

_GET_BATCH = "/headrace.v1.ShardService/GetBatch"


class SingleBatch:
    """One `GetBatch` call, which another thread may cancel."""

    def __init__(
        self,
        endpoint: Endpoint,
        request: pb.GetBatchRequest,
        *,
        allocate: Allocate,
        limit_s: float,
        max_batch_bytes: int,
    ) -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            endpoint: The server.
            request: The batch to get.
            allocate: Returns memory for the payload.
            limit_s: Seconds after which the call fails.
            max_batch_bytes: Most payload bytes of the batch, whatever the server says.
        """
        self._endpoint, self._request = endpoint, request
        self._allocate, self._limit_s = allocate, limit_s
        self._bounds = Bounds.of(request, max_batch_bytes)
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._is_cancelled = False

    def get(self) -> BatchEvent:
        """Return the batch.

        Raises:
            HeadraceError: There is no such batch, or no answer in time, or the call was cancelled.
        """
        access, address = self._endpoint.access, self._endpoint.address
        with access.open_channel(address) as channel:
            ask = channel.unary_stream(
                _GET_BATCH,
                request_serializer=pb.GetBatchRequest.SerializeToString,
                response_deserializer=bytes,
            )
            call = ask(self._request, timeout=self._limit_s, metadata=access.metadata())
            with self._lock:
                self._channel = channel
                if self._is_cancelled:
                    channel.close()
            try:
                return self._assemble(call)
            except grpc.RpcError as failure:
                raise error_from_call(failure, target=address) from failure
            finally:
                end_call(channel, iter(call))

    def cancel(self) -> None:
        """End the call, from any thread."""
        with self._lock:
            self._is_cancelled = True
            if self._channel is not None:
                self._channel.close()

    def _assemble(self, call: grpc.CallIterator[bytes]) -> BatchEvent:
        assembler = StreamAssembler(self._allocate, bounds=self._bounds)
        for message in call:
            event = assembler.feed(message)
            if isinstance(event, BatchEvent):
                return event
        raise StreamCorruptError(f"{self._endpoint.address} ended a GetBatch without a batch")


def get_batch_request(request: pb.ReadBatchesRequest, token: bytes) -> pb.GetBatchRequest:
    """Return the request for the batch that follows a token of a stream.

    Args:
        request: The request of the stream, which must ask for every batch.
        token: The resume token of the previous batch.
    """
    wanted = pb.GetBatchRequest()
    for field in wanted.DESCRIPTOR.fields:
        if field.containing_oneof is not None and field.containing_oneof.name == "start":
            continue
        if field.name not in request.DESCRIPTOR.fields_by_name:
            continue
        value = getattr(request, field.name)
        if field.is_repeated:
            getattr(wanted, field.name).extend(value)
        elif field.message_type is None:
            setattr(wanted, field.name, value)
        elif request.HasField(field.name):
            getattr(wanted, field.name).CopyFrom(value)
    wanted.resume_token = token
    return wanted
