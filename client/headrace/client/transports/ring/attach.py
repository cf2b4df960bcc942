"""Attach a stream to a ring, through which its feed then reads."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from headrace.client.feeds.transport_plugs import TransportPlug
from headrace.client.feeds.wait_times import HopClock
from headrace.client.servers.endpoints import Endpoint
from headrace.client.transports.ring.feed import RingFeed
from headrace.client.transports.ring.memory import RingMemory
from headrace.client.transports.ring.options import Ring
from headrace.errors import NoTransportError, StreamCorruptError
from headrace.ring import HELLO_BYTES, REFUSAL_MOST_BYTES, VERSION, read_hello, ring_socket_of
from headrace.v1 import ring_pb2 as ring_pb
from headrace.v1 import shard_service_pb2 as pb

_ATTACH_S = 5.0
"""Most seconds for each step on the ring's socket, where the server answers at once."""

_UNIX = "unix:"

_log = logging.getLogger(__name__)


class RingPlug(TransportPlug):
    """Opens feeds through a ring."""

    @contextmanager
    def open(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, *, clock: HopClock
    ) -> Iterator[RingFeed]:
        """Open a stream, and close it with all its resources at the end."""
        _check(endpoint)
        ring = self.options.of(Ring)
        wanted_bytes = ring.wanted_bytes(self.options)
        asked = ring_pb.Ring(ring_bytes=wanted_bytes, check_payload=ring.check_payload)
        with self.attached(asked, endpoint, request, clock) as call:
            offer = call.offered(ring_pb.RingOffer)
            if offer.version != VERSION:
                raise NoTransportError(
                    f"the server's rings have version {offer.version}, but this client knows "
                    f"{VERSION}"
                )
            with _attached(endpoint.address, offer, wanted_bytes) as (connection, memory):
                self._begin(memory, offer)
                yield RingFeed(
                    call.wire,
                    memory,
                    connection,
                    assembler=call.assembler,
                    clock=clock,
                    transport=self.landing.transport,
                    takes_runs=self.landing.takes_runs,
                    silence_s=self.silence_s,
                )

    def _begin(self, memory: RingMemory, offer: ring_pb.RingOffer) -> None:
        if offer.warning:
            _log.warning("a ring is smaller than requested: %s", offer.warning)
        if self.landing.adopt is not None:
            self.landing.adopt(memory.array)
        transport = self.landing.transport
        transport.name, transport.reason = "ring", offer.warning
        transport.shared_bytes = memory.array.size


def _check(endpoint: Endpoint) -> None:
    if not endpoint.address.startswith(_UNIX):
        raise NoTransportError(f"{endpoint.address} is not a unix socket, which a ring needs")
    if not hasattr(os, "memfd_create") or not hasattr(socket, "recv_fds"):
        raise NoTransportError("this platform has no memfd")


@contextmanager
def _attached(
    address: str, offer: ring_pb.RingOffer, asked_bytes: int
) -> Iterator[tuple[socket.socket, RingMemory]]:
    """Fetch the ring from the socket beside the server's, and release it at the end.

    Raises:
        NoTransportError: The socket cannot be reached from here, or the server refuses.
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
            raise NoTransportError(f"the ring's socket {path} cannot be used ({error})") from error
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
        raise NoTransportError(f"the ring cannot be mapped ({error})") from error
    finally:
        for fd in fds:
            os.close(fd)
