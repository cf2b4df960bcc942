"""Make the rings of one server, decide who gets one, and count them."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack

from google.protobuf.message import Message

from headrace.errors import NoTransportError
from headrace.ring import VERSION, hello, ring_socket_of
from headrace.server.cache.memory.system_memory import memory_limit
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.tickets import Ticket, met
from headrace.server.stream.transport_plugs import Attaching, AttachingCall, TransportPlug
from headrace.server.telemetry.metrics import Metrics
from headrace.server.transports.ring.channel import RingChannel
from headrace.server.transports.ring.listener import RingDoor
from headrace.server.transports.ring.memory import IS_SUPPORTED, RingMemory
from headrace.server.transports.ring.metrics import RingMetrics
from headrace.server.transports.ring.outlet import RingOutlet
from headrace.server.transports.ring.settings import RingSettings
from headrace.server.transports.ring.size import RingSize, ring_size
from headrace.v1 import ring_pb2 as pb

_log = logging.getLogger(__name__)


# A stream with a ring has its memory, its socket, and a descriptor that wakes it.
_FILES = 3


class Rings(TransportPlug):
    """Make rings for clients on this host."""

    settings = RingSettings
    options = pb.Ring

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        self._config = config
        self._own = config.of_plug(RingSettings)
        self._metrics = RingMetrics(metrics.registry)
        self._doors: list[RingDoor] = []
        self._lock = threading.Lock()
        self._open_bytes = 0
        self._why_not = self._reason()

    @classmethod
    def files(cls, config: ServerConfig, limit: int) -> int:
        del limit
        has_rings = any(address.startswith("unix:") for address in config.addresses)
        is_on = has_rings and config.of_plug(RingSettings).ring_bytes
        return _FILES * config.max_streams if is_on else 0

    def listen(self, addresses: Sequence[str]) -> None:
        """Open a listener beside each unix socket of gRPC; without one there are no rings."""
        if self._why_not:
            return
        uids = {os.getuid(), *self._own.users}
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

    def attach(self, options: Message, asking: Attaching) -> Generator[Message, None, RingOutlet]:
        """Make a ring for a call and pass it to the client; yields the offer."""
        assert isinstance(options, pb.Ring)
        sized = self._sized(options.ring_bytes, asking)
        try:
            connection = yield from self._met(asking.call, sized.warning)
            memory, channel = _handed_over(connection, sized.size)
        except BaseException:
            self._count(-1, -sized.size)
            raise
        return RingOutlet(
            memory,
            channel,
            max_chunk_bytes=asking.contents.max_chunk_bytes,
            check_payload=options.check_payload,
            observer=self._metrics,
            on_close=lambda: self._count(-1, -sized.size),
        )

    def close(self) -> None:
        """Make no more rings; rings in use stay."""
        for door in self._doors:
            door.close()

    def _met(self, call: AttachingCall, warning: str) -> Generator[Message, None, socket.socket]:
        """Offer a ring, and wait for the client to fetch it."""
        # Valid at each listener: a client knows only the one beside the socket that it used.
        ticket = Ticket()
        offer = pb.RingOffer(version=VERSION, ticket=ticket.secret, warning=warning)
        connection = yield from met(ticket, offer, [each.tickets for each in self._doors], call)
        if connection is None:
            raise NoTransportError("the client did not fetch its ring")
        return connection

    def _sized(self, wanted_bytes: int, asking: Attaching) -> RingSize:
        """Return the size of a new ring, and count it from now on."""
        why_not = self._why_not
        if not self._doors:
            why_not = why_not or "this server listens on no unix socket"
        elif not asking.call.peer.startswith("unix:"):
            why_not = "the call came over TCP, not over the server's unix socket"
        if why_not:
            raise NoTransportError(why_not)
        # A ring of the usual size is better than none.
        for room_bytes in (asking.contents.tensor_bytes, 0):
            with self._lock:
                sized = ring_size(
                    wanted_bytes,
                    most=self._own.ring_bytes,
                    limit=memory_limit(),
                    cache_bytes=self._config.cache_bytes,
                    open_bytes=self._open_bytes,
                    batch_bytes=room_bytes,
                )
            if asking.share.stand(sized.size):
                break
        else:
            raise NoTransportError(
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
        self._metrics.changed(rings, size)

    def _reason(self) -> str:
        if not IS_SUPPORTED:
            return "this platform has no memfd"
        if not self._own.ring_bytes:
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
            raise NoTransportError(f"no ring could be made ({error})") from error
        opened.pop_all()
    return memory, channel
