"""Attach a stream to a lane, over which its feed then reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from headrace.client.feeds.transport_plugs import TransportPlug
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.transport import Transport
from headrace.client.servers.endpoints import Endpoint
from headrace.client.transports.lane.connect import connected
from headrace.client.transports.lane.feed import LaneFeed
from headrace.client.transports.lane.options import Lane
from headrace.client.transports.lane.refusals import REFUSALS
from headrace.client.wire.frames import keep_freed_memory
from headrace.errors import NoTransportError
from headrace.lane import VERSION
from headrace.v1 import lane_pb2
from headrace.v1 import shard_service_pb2 as pb

_UNIX = "unix:"


class LanePlug(TransportPlug):
    """Opens feeds over a lane."""

    @classmethod
    def is_tried(cls, options: Transport) -> bool:
        return any(isinstance(each, Lane) for each in options.options)

    @contextmanager
    def open(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, *, clock: HopClock
    ) -> Iterator[LaneFeed]:
        """Open a stream, and close it with all its resources at the end."""
        address = endpoint.address
        if address.startswith(_UNIX):
            raise NoTransportError(f"{address} is a unix socket; a lane is for networks")
        if self.options.kind == "auto":
            if endpoint.access.tls is not None:
                # Python's ssl gives its lock up for each 16 KiB: 0.6 times gRPC's rate, and 0.3
                # times beside a loop that keeps Python busy.
                raise NoTransportError("with TLS a lane is slower than gRPC")
            if reason := REFUSALS.why_not(address):
                raise NoTransportError(reason)
        keep_freed_memory()
        is_offered = False
        with ExitStack() as stack:
            try:
                asked = lane_pb2.Lane(version=VERSION)
                call = stack.enter_context(self.attached(asked, endpoint, request, clock))
                offer = call.offered(lane_pb2.LaneOffer)
                is_offered = True
                connection = stack.enter_context(closing(connected(endpoint, offer, call.metadata)))
            except NoTransportError as refusal:
                REFUSALS.note(address, refusal.message, is_offered=is_offered)
                raise NoTransportError(f"no lane: {refusal.message}") from refusal
            transport = self.landing.transport
            transport.name, transport.reason, transport.shared_bytes = "lane", "", 0
            yield LaneFeed(
                call.wire,
                connection,
                transport=transport,
                silence_s=self.silence_s,
                on_broken=partial(REFUSALS.note, address, is_offered=True),
            )
