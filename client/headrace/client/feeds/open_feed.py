"""Open feeds through a ring where possible, and over gRPC otherwise."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from google.protobuf.message import DecodeError

from headrace.client.feeds.feed import Feed
from headrace.client.feeds.grpc_feed import WireFeed, WireFeeds, encoded_messages, watched
from headrace.client.feeds.ring_feed import RingFeed
from headrace.client.feeds.ring_memory import RingMemory
from headrace.client.feeds.transport import Landing
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.transport import Transport
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.status import is_unknown_call
from headrace.client.wire.assembler import StreamAssembler
from headrace.client.wire.bounds import Bounds
from headrace.errors import CallerError, RingUnavailableError, StreamCorruptError
from headrace.ring import HELLO_BYTES, REFUSAL_MOST_BYTES, VERSION, read_hello, ring_socket_of
from headrace.v1 import shard_service_pb2 as pb

_ATTACH_S = 5.0
"""Most seconds for each step on the ring's socket, where the server answers at once."""

_UNIX = "unix:"

_log = logging.getLogger(__name__)


class RingFeeds:
    """Opens feeds: an `OpenFeed`.

    Args:
        options: The options about rings.
        landing: Where payloads go, and where to note how they arrive.
        silence_s: Seconds without a sign of life after which a stream counts as dead.
    """

    def __init__(self, options: Transport, landing: Landing, *, silence_s: float) -> None:
        self._options = options
        self._landing = landing
        self._silence_s = silence_s
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
            RingUnavailableError: A ring is required and cannot be opened.
        """
        with ExitStack() as stack:
            try:
                feed: Feed = stack.enter_context(self._ring(endpoint, request, clock))
            except RingUnavailableError as refusal:
                self._note(endpoint, refusal)
                feed = stack.enter_context(self._wire(endpoint, request, clock=clock))
            yield feed

    @contextmanager
    def _ring(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, clock: HopClock
    ) -> Iterator[RingFeed]:
        self._check(endpoint)
        wanted = pb.AttachRingRequest(
            read=request,
            ring_bytes=self._options.wanted_ring_bytes,
            check_payload=self._options.check_ring,
        )
        landing = self._landing
        bounds = Bounds.of(request, landing.max_batch_bytes)
        assembler = StreamAssembler(
            landing.allocate, keep=landing.keep, bounds=bounds, on_start=landing.transport.begin
        )
        with endpoint.access.open_channel(endpoint.address) as channel:
            call = encoded_messages(channel, "AttachRing", wanted, endpoint.access.metadata())
            wire = WireFeed(channel, call, assembler, clock, target=endpoint.address)
            with watched(wire, silence_s=self._silence_s):
                offer = _offer_of(wire)
                asked = self._options.wanted_ring_bytes
                with _attached(endpoint.address, offer, asked) as (connection, memory):
                    self._begin(memory, offer)
                    yield RingFeed(
                        wire,
                        memory,
                        connection,
                        assembler=assembler,
                        clock=clock,
                        transport=self._landing.transport,
                        takes_runs=self._landing.takes_runs,
                        silence_s=self._silence_s,
                    )

    def _check(self, endpoint: Endpoint) -> None:
        if self._options.kind == "grpc":
            raise RingUnavailableError("Transport('grpc') was requested")
        if not endpoint.address.startswith(_UNIX):
            raise RingUnavailableError(
                f"{endpoint.address} is not a unix socket, which a ring needs"
            )
        if not hasattr(os, "memfd_create") or not hasattr(socket, "recv_fds"):
            raise RingUnavailableError("this platform has no memfd")

    def _begin(self, memory: RingMemory, offer: pb.RingOffer) -> None:
        if offer.warning:
            _log.warning("a ring is smaller than requested: %s", offer.warning)
        if self._landing.adopt is not None:
            self._landing.adopt(memory.array)
        transport = self._landing.transport
        transport.name, transport.reason = "ring", offer.warning
        transport.ring_bytes = memory.array.size

    def _note(self, endpoint: Endpoint, refusal: RingUnavailableError) -> None:
        if self._options.kind == "ring":
            raise RingUnavailableError(
                f"Transport('ring') was requested, but {endpoint.address} offers no ring: "
                f"{refusal.message}",
                target=endpoint.address,
            ) from refusal
        transport = self._landing.transport
        transport.name, transport.reason = "grpc", refusal.message
        transport.ring_bytes = 0


def _offer_of(wire: WireFeed) -> pb.RingOffer:
    """Return the offer that the call starts with.

    Raises:
        RingUnavailableError: The server makes no rings, or rings of another layout.
    """
    try:
        message = wire.next_message()
    except RingUnavailableError:
        raise
    except CallerError as error:
        if is_unknown_call(error):
            raise RingUnavailableError("the server's version has no rings") from error
        raise
    offered = pb.AttachRingResponse() if message is None else _parsed(message)
    if not offered.HasField("ring_offer"):
        raise StreamCorruptError("the answer to a ring request did not start with an offer")
    if offered.ring_offer.version != VERSION:
        raise RingUnavailableError(
            f"the server's rings have version {offered.ring_offer.version}, but this client knows "
            f"{VERSION}"
        )
    return offered.ring_offer


def _parsed(message: bytes) -> pb.AttachRingResponse:
    try:
        return pb.AttachRingResponse.FromString(message)
    except DecodeError as error:
        raise StreamCorruptError(f"the offer of a ring cannot be read: {error}") from error


@contextmanager
def _attached(
    address: str, offer: pb.RingOffer, asked_bytes: int
) -> Iterator[tuple[socket.socket, RingMemory]]:
    """Fetch the ring from the socket beside the server's, and release it at the end.

    Raises:
        RingUnavailableError: The socket cannot be reached from here, or the server refuses.
    """
    path = ring_socket_of(address.removeprefix(_UNIX).removeprefix("//"))
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(_ATTACH_S)
        try:
            connection.connect(path)
            # A server that refuses at once says why, and closes the connection.
            with suppress(BrokenPipeError):
                connection.sendall(offer.ticket)
            said, fds, _, _ = socket.recv_fds(connection, HELLO_BYTES + REFUSAL_MOST_BYTES, 1)
        except OSError as error:
            raise RingUnavailableError(
                f"the ring's socket {path} cannot be used ({error})"
            ) from error
        memory = _mapped(said, fds, connection, asked_bytes)
        try:
            yield connection, memory
        finally:
            memory.detach()


def _mapped(said: bytes, fds: list[int], connection: socket.socket, asked_bytes: int) -> RingMemory:
    try:
        size = read_hello(said)
        if 0 < asked_bytes < size:
            raise StreamCorruptError(
                f"the server sent a ring of {size} bytes; expected at most {asked_bytes}"
            )
        if len(fds) != 1 or os.fstat(fds[0]).st_size != size:
            raise StreamCorruptError(
                f"the server sent a ring of {size} bytes with {len(fds)} descriptors"
            )
        needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        if fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & needed != needed:
            raise StreamCorruptError("the server sent a ring whose size it could still change")
        return RingMemory(fds[0], size, connection)
    except (OSError, OverflowError, ValueError) as error:
        raise RingUnavailableError(f"the ring cannot be mapped ({error})") from error
    finally:
        for fd in fds:
            os.close(fd)
