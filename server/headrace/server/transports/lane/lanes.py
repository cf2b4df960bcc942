"""The lanes of one server: where it listens for them, and which streams have one."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress

from google.protobuf.message import Message

from headrace.errors import ConfigurationError, NoTransportError
from headrace.lane import VERSION
from headrace.server.front.descriptors import raise_limit
from headrace.server.settings.server_config import ServerConfig, split_address
from headrace.server.stream.tickets import met
from headrace.server.stream.transport_plugs import Attaching, TransportPlug
from headrace.server.telemetry.metrics import Metrics
from headrace.server.transports.lane.channel import LaneChannel
from headrace.server.transports.lane.door import MOST_STRANGERS, LaneDoor
from headrace.server.transports.lane.encryption import Encryption
from headrace.server.transports.lane.metrics import LaneMetrics
from headrace.server.transports.lane.outlet import LaneOutlet
from headrace.server.transports.lane.settings import LaneSettings
from headrace.server.transports.lane.tickets import LaneTicket, address_of
from headrace.v1 import lane_pb2 as pb

# A stream with a lane has its connection.
_FILES = 1
# The part of all files that lanes may take; without one a stream goes over gRPC.
_PART = 4
_BACKLOG = 128
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - as gRPC takes both

_log = logging.getLogger(__name__)


class Lanes(TransportPlug):
    """Give streams lanes."""

    settings = LaneSettings
    options = pb.Lane

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        self._config = config
        self._own = config.of_plug(LaneSettings)
        self._metrics = LaneMetrics(metrics.registry)
        self._door: LaneDoor | None = None
        self._most = _most_lanes(config, raise_limit())
        self._open_count = 0
        self._grpc_ports: list[int] = []
        self._lock = threading.Lock()
        self._encryption = Encryption.of(config)
        self._why_not = "" if self._own.is_on else "this server has no lane (--lane is off)"

    @classmethod
    def files(cls, config: ServerConfig, limit: int) -> int:
        most = _most_lanes(config, limit)
        return most and _FILES * most + MOST_STRANGERS

    def listen(self, addresses: Sequence[str]) -> None:
        """Listen at each host on which gRPC does; without one there are no lanes."""
        hosts = _hosts(addresses)
        if self._why_not or not hosts:
            self._why_not = self._why_not or "this server listens on no port"
            return
        self._grpc_ports = sorted({port for _, port in _ports(addresses)})
        ports = self._own.ports(next(iter(hosts.values())))
        is_free = any(port == 0 for port in _hosts(self._config.addresses).values())
        if self._own.lane == "auto" and is_free:
            ports = range(1)
        listeners = _bound(list(hosts), ports)
        if not listeners:
            found = f"none of the ports from {ports[0]} to {ports[-1]} is free"
            if self._own.lane != "auto":
                raise ConfigurationError(
                    f"the lane cannot listen: {found}; choose another with --lane, or --lane off"
                )
            _log.warning("no lane: %s; batches are sent over gRPC", found)
            self._why_not = f"this server's lane cannot listen ({found})"
            return
        self._door = LaneDoor(listeners, encryption=self._encryption, observer=self._metrics)
        self._door.start()
        _log.info("lane on port %d", self._door.port)

    def attach(self, options: Message, asking: Attaching) -> Generator[Message, None, LaneOutlet]:
        """Offer a lane to a call's client, and wait for it."""
        del options
        door, call = self._door, asking.call
        if door is None:
            raise NoTransportError(self._why_not)
        if self._open_count >= self._most:
            raise NoTransportError(
                f"this server has {self._open_count} lanes, as many as its open files allow; raise "
                "the limit (ulimit -Hn)"
            )
        if not call.peer.startswith("ip"):
            raise NoTransportError("the call came over a unix socket; a lane is for networks")
        ticket = LaneTicket(call)
        offer = pb.LaneOffer(
            version=VERSION,
            host=_own_address(address_of(call.host)),
            port=door.port,
            ticket=ticket.secret,
            is_encrypted=self._encryption is not None,
            grpc_ports=self._grpc_ports,
        )
        connection = yield from met(ticket, offer, [door.tickets], call)
        if connection is None:
            raise NoTransportError("the client did not come to its lane")
        channel = LaneChannel(connection)
        if not call.on_end(channel.wake):
            channel.wake()
        self._count(1)
        return LaneOutlet(
            channel,
            asking,
            on_sent=self._metrics.sent,
            on_close=lambda: self._count(-1),
        )

    def _count(self, lanes: int) -> None:
        with self._lock:
            self._open_count += lanes
        self._metrics.opened(lanes)

    def close(self) -> None:
        """Let nobody in any more; lanes in use stay."""
        if self._door is not None:
            self._door.close()


def _most_lanes(config: ServerConfig, limit: int) -> int:
    """Return how many lanes a server may have, so that most files are left for what it needs."""
    if not (config.of_plug(LaneSettings).is_on and _hosts(config.addresses)):
        return 0
    return max(0, min(config.max_streams, (limit // _PART - MOST_STRANGERS) // _FILES))


def _hosts(addresses: Sequence[str]) -> dict[str, int]:
    """Return the hosts on which gRPC listens, with the first port of each."""
    return dict(reversed(_ports(addresses)))


def _ports(addresses: Sequence[str]) -> list[tuple[str, int]]:
    return [split_address(each) for each in addresses if not each.startswith("unix:")]


def _bound(hosts: Sequence[str], ports: Sequence[int]) -> list[socket.socket]:
    """Listen at all hosts on one port, the first that is free at each; none if none is."""
    for port in ports:
        with ExitStack() as stack:
            found: list[socket.socket] = []
            try:
                for host in hosts:
                    at = found[0].getsockname()[1] if found else port
                    found += map(stack.enter_context, _listeners(host, at))
            except OSError:
                continue
            stack.pop_all()
            return found
    return []


def _listeners(host: str, port: int) -> Iterator[socket.socket]:
    """Yield what listens at all addresses of a host, as gRPC does.

    Raises:
        OSError: The port is not free at the first of them.
    """
    if host in _EVERYWHERE and socket.has_dualstack_ipv6():
        yield socket.create_server(
            ("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
        return
    kind = socket.SOCK_STREAM
    first, *others = dict.fromkeys(
        (family, address[0]) for family, *_, address in socket.getaddrinfo(host, port, type=kind)
    )
    listener = socket.create_server((first[1], port), family=first[0], backlog=_BACKLOG)
    yield listener
    for family, address in others:
        with suppress(OSError):
            found = listener.getsockname()[1]
            yield socket.create_server((address, found), family=family, backlog=_BACKLOG)


def _own_address(peer: str) -> str:
    """Return the address of this machine that a client's packets come to: no packet is sent."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError as error:
            raise NoTransportError(f"no address of this server leads to {peer}") from error
        return str(probe.getsockname()[0])
