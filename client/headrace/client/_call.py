"""One gRPC call at a time: channels, a watchdog for silence, errors of our tree."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import grpc

from headrace.client._access import Access
from headrace.client._config import Deadlines
from headrace.client._endpoints import Endpoints
from headrace.client._status import error_from_call
from headrace.errors import HeadraceError, ServerUnreachableError
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc


class StreamCall:
    """A running `ReadBatches` call that does not stay silent for ever."""

    def __init__(
        self,
        stub: rpc.ShardServiceStub,
        request: pb.ReadBatchesRequest,
        *,
        target: str,
        silence_s: float,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Start the call.

        Args:
            stub: Where to call.
            request: What to read.
            target: The address, for messages.
            silence_s: Seconds without a message after which the call is cancelled.
            metadata: What goes with the call.
        """
        self._target = target
        self._silence_s = silence_s
        self._done = threading.Event()
        self._waiting_since: float | None = None
        self._silent = False
        self._call = stub.ReadBatches(request, metadata=metadata)
        self._watchdog = threading.Thread(
            target=self._watch, name="headrace-silence-watchdog", daemon=True
        )
        self._watchdog.start()

    def messages(self) -> Iterator[pb.ReadBatchesResponse]:
        """Yield the messages of the stream.

        Raises:
            HeadraceError: The call failed, or nothing came for ``silence_s``.
        """
        responses = iter(self._call)
        try:
            while True:
                self._waiting_since = time.monotonic()
                message = next(responses, None)
                # Time in which the caller works on a message, or rests, is not silence.
                self._waiting_since = None
                if message is None:
                    return
                yield message
        except grpc.RpcError as failure:
            raise self._error(failure) from failure

    def cancel(self) -> None:
        """End the call; `messages` then raises or returns at once."""
        self._call.cancel()  # type: ignore[no-untyped-call] # grpc-stubs leave it so

    def close(self) -> None:
        """Cancel the call and join its watchdog."""
        self._done.set()
        self.cancel()
        self._watchdog.join(timeout=5)

    def _watch(self) -> None:
        while not self._done.wait(self._silence_s / 4):
            since = self._waiting_since
            if since is not None and time.monotonic() - since >= self._silence_s:
                self._silent = True
                self.cancel()
                return

    def _error(self, failure: grpc.RpcError) -> HeadraceError:
        if self._silent:
            return ServerUnreachableError(
                f"{self._target} sent nothing for {self._silence_s:.0f} s, not even a heartbeat; "
                "the server or the network to it hangs",
                target=self._target,
            )
        return error_from_call(failure, target=self._target)


@contextmanager
def open_stream(
    target: str, request: pb.ReadBatchesRequest, *, silence_s: float, access: Access
) -> Iterator[StreamCall]:
    """Open a stream on a connection of its own, and close both at the end."""
    with access.open_channel(target) as channel:
        call = StreamCall(
            rpc.ShardServiceStub(channel),
            request,
            target=target,
            silence_s=silence_s,
            metadata=access.metadata(),
        )
        try:
            yield call
        finally:
            call.close()


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
