"""A server that gRPC itself has told to take no more calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from headrace.client.servers.status import error_from_call, may_retry, retry_after_s
from headrace.errors import StreamLimitError
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc
from support.scripted_server import ScriptedService
from support.wire import start_message

_TIMEOUT_S = 60


def test_a_full_queue_is_waited_for() -> None:
    """A call past the queue's end may be tried again in a moment; it is no fault of the caller."""
    ended = threading.Event()

    def hold(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del request, context
        yield start_message()
        ended.wait(_TIMEOUT_S)

    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, maximum_concurrent_rpcs=1)
        rpc.add_ShardServiceServicer_to_server(ScriptedService([hold]), server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        with grpc.insecure_channel(address) as channel:
            stub = rpc.ShardServiceStub(channel)
            # A call that nobody refers to is cancelled, and the queue empty again.
            held = stub.ReadBatches(pb.ReadBatchesRequest(), timeout=_TIMEOUT_S)
            next(iter(held))
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListDatasets(pb.ListDatasetsRequest(), timeout=_TIMEOUT_S)
        ended.set()
        server.stop(0).wait(10)

    error = error_from_call(caught.value, target=address)
    assert isinstance(error, StreamLimitError)
    assert may_retry(error)
    assert 1.0 == retry_after_s(error)
