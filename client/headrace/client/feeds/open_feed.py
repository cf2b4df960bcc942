"""Open feeds by the transport that is asked for, or else over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headrace.client.feeds.feed import Feed
from headrace.client.feeds.grpc_feed import WireFeeds
from headrace.client.feeds.transport import Landing
from headrace.client.feeds.transport_plugs import plugs_for
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.transport import Transport
from headrace.client.servers.endpoints import Endpoint
from headrace.errors import NoTransportError
from headrace.v1 import shard_service_pb2 as pb


class Feeds:
    """Opens feeds: an `OpenFeed`.

    Args:
        options: How batches are to get here.
        landing: Where payloads go, and where to note how they arrive.
        silence_s: Seconds without a sign of life after which a stream counts as dead.
    """

    def __init__(self, options: Transport, landing: Landing, *, silence_s: float) -> None:
        self._kind, self._transport = options.kind, landing.transport
        self._plugs = plugs_for(options, landing, silence_s=silence_s)
        self._wire = WireFeeds(
            landing.allocate,
            silence_s,
            landing.keep,
            landing.max_batch_bytes,
            landing.transport.begin,
        )

    @contextmanager
    def __call__(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, *, clock: HopClock
    ) -> Iterator[Feed]:
        """Open a stream, and close it with all its resources at the end.

        Raises:
            NoTransportError: A transport is required and not available.
        """
        with ExitStack() as stack:
            yield self._opened(endpoint, request, clock, stack)

    def _opened(
        self,
        endpoint: Endpoint,
        request: pb.ReadBatchesRequest,
        clock: HopClock,
        stack: ExitStack,
    ) -> Feed:
        reasons = []
        for plug in self._plugs:
            try:
                return stack.enter_context(plug.open(endpoint, request, clock=clock))
            except NoTransportError as refusal:
                if self._kind != "auto":
                    raise NoTransportError(
                        f"Transport({self._kind!r}) was requested, but is not available from "
                        f"{endpoint.address}: {refusal.message}",
                        target=endpoint.address,
                    ) from refusal
                reasons.append(refusal.message)
        transport = self._transport
        transport.name, transport.shared_bytes = "grpc", 0
        transport.reason = "; ".join(reasons) or "Transport('grpc') was requested"
        return stack.enter_context(self._wire(endpoint, request, clock=clock))
