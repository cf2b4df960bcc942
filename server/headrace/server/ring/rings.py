"""Make the rings of one server, decide who gets one, and count them."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from headrace.errors import RingUnavailableError
from headrace.ring import VERSION, hello, ring_socket_of
from headrace.server.cache.memory.system_memory import memory_limit
from headrace.server.ring.channel import RingChannel
from headrace.server.ring.listener import RingDoor, Ticket
from headrace.server.ring.memory import IS_SUPPORTED, RingMemory
from headrace.server.ring.outlet import RingOutlet
from headrace.server.ring.size import RingSize, ring_size
from headrace.server.settings.server_config import ServerConfig
from headrace.server.shares import Share
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RingWish:
    """The ring that a call requested.

    Attributes:
        ring_bytes: The requested size; 0 lets the server choose.
        check_payload: Whether slots carry the hash of their payload.
        peer: The client's address as gRPC has it.
        on_end: Registers a function to call when the call ends; returns False if it already has.
    """

    ring_bytes: int
    check_payload: bool
    peer: str
    on_end: Callable[[Callable[[], None]], bool]


class Rings:
    """Make rings for clients on this host.

    Args:
        config: The server's settings.
        metrics: Count the rings.
    """

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._doors: list[RingDoor] = []
        self._lock = threading.Lock()
        self._open_bytes = 0
        self._why_not = self._reason()

    def listen(self, addresses: Iterable[str]) -> None:
        """Open a listener beside each unix socket of gRPC; without one there are no rings."""
        if self._why_not:
            return
        uids = {os.getuid(), *self._config.ring_users}
        for address in addresses:
            if not address.startswith("unix:"):
                continue
            path = ring_socket_of(address.removeprefix("unix:"))
            door = RingDoor(path, mode=self._config.unix_mode, uids=uids)
            try:
                door.start()
            except OSError as error:
                door.close()
                self._why_not = f"the ring's socket {path} cannot be opened ({error})"
                _log.warning("no rings: %s; batches are sent over gRPC", self._why_not)
                continue
            self._doors.append(door)

    def attach(
        self, wish: RingWish, *, max_chunk_bytes: int, batch_bytes: int, share: Share
    ) -> Generator[bytes, None, RingOutlet]:
        """Make a ring for a call and pass it to the client; yields the offer.

        Args:
            wish: The ring that the call requested.
            max_chunk_bytes: The largest payload of one message.
            batch_bytes: The payload of a batch, where it is known; else 0.
            share: The stream's share of the budget, which pays for the ring.

        Raises:
            RingUnavailableError: This client cannot have a ring.
        """
        sized = self._sized(wish, share, batch_bytes)
        try:
            connection = yield from self._met(wish, sized.warning)
            memory, channel = _handed_over(connection, sized.size)
        except BaseException:
            self._count(-1, -sized.size)
            raise
        return RingOutlet(
            memory,
            channel,
            max_chunk_bytes=max_chunk_bytes,
            check_payload=wish.check_payload,
            observer=self._metrics,
            on_close=lambda: self._count(-1, -sized.size),
        )

    def close(self) -> None:
        """Make no more rings; rings in use stay."""
        for door in self._doors:
            door.close()

    def _met(self, wish: RingWish, warning: str) -> Generator[bytes, None, socket.socket]:
        """Offer a ring, and wait for the client to fetch it."""
        # Valid at each listener: a client knows only the one beside the socket that it used.
        ticket = Ticket()
        try:
            for door in self._doors:
                door.admit(ticket)
            # A finished call waits for nobody.
            if not wish.on_end(lambda: ticket.give(None)):
                ticket.give(None)
            offer = pb.RingOffer(version=VERSION, ticket=ticket.secret, warning=warning)
            yield pb.AttachRingResponse(ring_offer=offer).SerializeToString()
            connection = ticket.wait()
        finally:
            for door in self._doors:
                door.forget(ticket)
            ticket.discard()
        if connection is None:
            raise RingUnavailableError("the client did not fetch its ring")
        return connection

    def _sized(self, wish: RingWish, share: Share, batch_bytes: int) -> RingSize:
        """Return the size of a new ring, and count it from now on."""
        why_not = self._why_not
        if not self._doors:
            why_not = why_not or "this server listens on no unix socket"
        elif not wish.peer.startswith("unix:"):
            why_not = "the call came over TCP, not over the server's unix socket"
        if why_not:
            raise RingUnavailableError(why_not)
        # A ring of the usual size is better than none.
        for room_bytes in (batch_bytes, 0):
            with self._lock:
                sized = ring_size(
                    wish.ring_bytes,
                    most=self._config.ring_bytes,
                    limit=memory_limit(),
                    cache_bytes=self._config.cache_bytes,
                    open_bytes=self._open_bytes,
                    batch_bytes=room_bytes,
                )
            if share.stand(sized.size):
                break
        else:
            raise RingUnavailableError(
                f"the server has no memory for a ring of {sized.size} bytes at the moment: all "
                f"batches and rings may take {self._config.payload_bytes} (--payload-bytes)"
            )
        self._count(1, sized.size)
        if sized.warning:
            _log.warning("a ring is smaller than requested: %s", sized.warning)
        return sized

    def _count(self, rings: int, size: int) -> None:
        with self._lock:
            self._open_bytes += size
        self._metrics.rings_changed(rings, size)

    def _reason(self) -> str:
        if not IS_SUPPORTED:
            return "this platform has no memfd"
        if not self._config.ring_bytes:
            return "this server makes no rings (--ring-bytes is 0)"
        return ""


def _handed_over(connection: socket.socket, size: int) -> tuple[RingMemory, RingChannel]:
    """Make a ring and pass it to the client; nothing stays open if that fails."""
    with ExitStack() as opened:
        opened.callback(connection.close)
        try:
            memory = RingMemory(size)
            opened.callback(memory.close)
            channel = RingChannel(connection)
            opened.callback(channel.close)
            socket.send_fds(connection, [hello(size)], [memory.shared.fd])
        except OSError as error:
            raise RingUnavailableError(f"no ring could be made ({error})") from error
        opened.pop_all()
    return memory, channel
