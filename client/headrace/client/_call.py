"""Ask servers what they know of datasets: unary calls, with errors of our tree."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import grpc

from headrace.client._access import Access
from headrace.client._config import Deadlines
from headrace.client._endpoints import Endpoints
from headrace.client._status import error_from_call
from headrace.errors import ServerUnreachableError
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc


def fetch_from_any(
    endpoints: Endpoints, wanted: Sequence[pb.GetDatasetRequest], *, deadlines: Deadlines
) -> list[pb.Dataset]:
    """Ask each server in turn for some datasets, until one answers.

    Args:
        endpoints: The servers.
        wanted: The datasets.
        deadlines: ``connect_s`` is shared by all of them.

    Raises:
        DatasetNotFoundError: A server serves none of that name.
        ServerUnreachableError: No server answered in time.
    """
    share_s = deadlines.connect_s / len(endpoints.names)
    failure: ServerUnreachableError | None = None
    for endpoint in endpoints.each(threading.Event()):
        share = replace(deadlines, connect_s=min(share_s, endpoint.wait_s))
        try:
            return fetch_datasets(endpoint.address, wanted, deadlines=share, access=endpoint.access)
        except ServerUnreachableError as error:
            failure = error
    assert failure is not None
    raise failure


def fetch_dataset(target: str, name: str, *, deadlines: Deadlines, access: Access) -> pb.Dataset:
    """Ask a server for the current version of one dataset; as `fetch_datasets`."""
    wanted = [pb.GetDatasetRequest(name=name)]
    return fetch_datasets(target, wanted, deadlines=deadlines, access=access)[0]


def fetch_datasets(
    target: str,
    wanted: Sequence[pb.GetDatasetRequest],
    *,
    deadlines: Deadlines,
    access: Access,
) -> list[pb.Dataset]:
    """Ask a server for some datasets.

    Args:
        target: The server's gRPC address.
        wanted: The datasets.
        deadlines: ``connect_s`` bounds each call, waiting for the server included.
        access: How to get in.

    Raises:
        DatasetNotFoundError: The server serves none of that name.
        ServerUnreachableError: No server answered in time.
    """
    with access.open_channel(target) as channel:
        stub = rpc.ShardServiceStub(channel)
        try:
            return [
                stub.GetDataset(
                    request,
                    timeout=deadlines.connect_s,
                    wait_for_ready=True,
                    metadata=access.metadata(),
                ).dataset
                for request in wanted
            ]
        except grpc.RpcError as failure:
            raise error_from_call(failure, target=target) from failure
