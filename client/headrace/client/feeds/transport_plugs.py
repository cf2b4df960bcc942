"""The transports that a client has besides gRPC.

A folder of `headrace.client.transports` is a plug: it has the name of the transport, and a class
`Plug`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, TypeVar

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from headrace.client.feeds.feed import Feed
from headrace.client.feeds.grpc_feed import WireFeed, encoded_messages, watched
from headrace.client.feeds.transport import Landing
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.transport import Transport
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.status import is_unknown_call
from headrace.client.wire.assembler import StreamAssembler
from headrace.client.wire.bounds import Bounds
from headrace.errors import CallerError, NoTransportError, StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb

_Offer = TypeVar("_Offer", bound=Message)


class TransportPlug:
    """The transport of one folder, for one reader.

    Args:
        options: How batches are to get here.
        landing: Where payloads go, and where to note how they arrive.
        silence_s: Seconds without a sign of life after which a stream counts as dead.
    """

    def __init__(self, options: Transport, landing: Landing, *, silence_s: float) -> None:
        self.options, self.landing, self.silence_s = options, landing, silence_s

    @classmethod
    def is_tried(cls, options: Transport) -> bool:
        """Return whether ``Transport("auto")`` tries it."""
        del options
        return True

    def open(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, *, clock: HopClock
    ) -> AbstractContextManager[Feed]:
        """Open a stream, and close it with all its resources at the end.

        Raises:
            NoTransportError: It is not available, for a reason that the user is told.
        """
        raise NotImplementedError

    @contextmanager
    def attached(
        self, asked: Message, endpoint: Endpoint, request: pb.ReadBatchesRequest, clock: HopClock
    ) -> Iterator[AttachedCall]:
        """Ask a server for the transport, and end the call at the end.

        Args:
            asked: The options of the transport for the server.
            endpoint: The server.
            request: What to read.
            clock: Where to note what the call waits for.

        Raises:
            NoTransportError: The server does not have it, or not for this client.
        """
        metadata = endpoint.access.metadata()
        wanted = pb.AttachTransportRequest(read=request)
        wanted.transport.Pack(asked)
        landing = self.landing
        assembler = StreamAssembler(
            landing.allocate,
            keep=landing.keep,
            bounds=Bounds.of(request, landing.max_batch_bytes),
            on_start=landing.transport.begin,
        )
        with landing.connections.open(endpoint) as channel:
            call = encoded_messages(channel, "AttachTransport", wanted, metadata)
            wire = WireFeed(channel, call, assembler, clock, target=endpoint.address)
            with watched(wire, silence_s=self.silence_s):
                yield AttachedCall(wire, assembler, _offer_of(wire), metadata)


class AttachedCall(NamedTuple):
    """A call after its offer.

    Attributes:
        wire: What the call still carries.
        assembler: Makes batches of both.
        offer: The offer.
        metadata: The metadata of the call.
    """

    wire: WireFeed
    assembler: StreamAssembler
    offer: AnyMessage
    metadata: tuple[tuple[str, str], ...]

    def offered(self, kind: type[_Offer]) -> _Offer:
        """Return the offer.

        Raises:
            StreamCorruptError: It is of another transport, or damaged.
        """
        offer = kind()
        try:
            if self.offer.Unpack(offer):
                return offer
        except DecodeError as error:
            raise StreamCorruptError(f"an offer cannot be read: {error}") from error
        raise StreamCorruptError(
            f"the server offered {self.offer.TypeName()[:100]!r}; expected "
            f"{kind.DESCRIPTOR.full_name}"
        )


def _offer_of(wire: WireFeed) -> AnyMessage:
    """Return the offer that the call starts with."""
    try:
        message = wire.next_message()
    except CallerError as error:
        if is_unknown_call(error):
            raise NoTransportError("the server's version has no transports") from error
        raise
    try:
        offered = pb.AttachTransportResponse.FromString(message or b"")
    except DecodeError as error:
        raise StreamCorruptError(f"an offer cannot be read: {error}") from error
    if not offered.HasField("offer"):
        raise StreamCorruptError("the answer to a request for a transport began without an offer")
    return offered.offer
