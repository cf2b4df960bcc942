"""Bind a gRPC server to its addresses, or explain in one line why that fails."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc

from headrace.errors import ConfigurationError
from headrace.server.front.wire_server import WireServer
from headrace.server.rpc.ports import Place, free_places
from headrace.server.settings.server_config import split_address

GRPC_OPTIONS = (
    # Otherwise a second server could start on the same port and get half of the connections.
    ("grpc.so_reuseport", 0),
    # Requests are small; no message of a client may take more memory than this.
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.max_send_message_length", -1),
    # Clients may ping every 5 s, even between calls, to notice a dead connection. By default gRPC
    # closes connections with pings more often than every 5 min.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # So that the server notices dead clients, whose streams would hold threads forever.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Connections without an HTTP/2 handshake or without a call are dropped; clients of gRPC connect
    # again when needed. The defaults are 2 minutes and never.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),
    # Calls of one connection, including reset ones that are not cleaned up yet. Clients know the
    # limit and hold further calls back. A client of ours has one stream on a connection.
    ("grpc.max_concurrent_streams", 128),
    # A compressed request is refused by its headers: 0.9 MB may become 1 GiB.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Calls of one method that gRPC holds until the server takes them, including reset ones. Taking
    # one needs 0.1 to 0.4 ms; until then it occupies about 50 KiB. gRPC ends further calls with
    # CANCELLED, by default from 1,000 on; with 65,536, resets on one connection after another took
    # 3 GB.
    ("grpc.server.max_pending_requests", 1 << 13),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 13),
)

# Workers of one server listen on the same ports on purpose.
SHARED_PORT_OPTIONS = (("grpc.so_reuseport", 1), *GRPC_OPTIONS[1:])


@dataclass(frozen=True, slots=True)
class Reservation:
    """A port that is reserved for workers.

    Attributes:
        address: ``host:port`` with the actual port.
        held: Sockets that are bound to the port, one at each address, but do not listen.
    """

    address: str
    held: tuple[socket.socket, ...]

    def close(self) -> None:
        """Release the port."""
        for each in self.held:
            each.close()


def reserve(address: str) -> Reservation:
    """Reserve a port that this user's processes share, so that no other server starts on it.

    Args:
        address: ``host:port``; port 0 picks a free one.

    Raises:
        ConfigurationError: The address is in use, or does not belong to this machine.
    """
    host, port = split_address(address)
    try:
        places = free_places(host, port)
        with ExitStack() as stack:
            held = tuple(_held(place, stack) for place in places)
            stack.pop_all()
    except OSError as error:
        raise _refusal(address) from error
    _, (_, found, *_) = places[0]
    return Reservation(f"{address.rpartition(':')[0]}:{found}", held)


def bind(
    server: WireServer,
    address: str,
    *,
    tls: grpc.ServerCredentials | None = None,
    unix_mode: int = 0o600,
    is_shared: bool = False,
) -> str:
    """Bind a server to one address and return the address that clients use.

    Args:
        server: The server, which is not started yet.
        address: ``host:port`` (port 0 picks a free one) or ``unix:/path``.
        tls: Credentials for TLS on TCP addresses; None for no TLS.
        unix_mode: Permissions of a unix socket.
        is_shared: Whether the port is reserved for several processes, of which this is one.

    Raises:
        ConfigurationError: The address is in use, or does not belong to this machine.
    """
    found = address
    if address.startswith("unix:"):
        _make_way(address.removeprefix("unix:"))
    elif not is_shared:
        try:
            _, (_, port, *_) = free_places(*split_address(address))[0]
        except OSError as error:
            raise _refusal(address) from error
        found = f"{address.rpartition(':')[0]}:{port}"
    if not _add_port(server, found, tls, unix_mode):
        raise _refusal(address)
    return found


def _held(place: Place, stack: ExitStack) -> socket.socket:
    family, address = place
    held = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(address)
    return held


def _add_port(
    server: WireServer, address: str, tls: grpc.ServerCredentials | None, unix_mode: int
) -> int:
    if address.startswith("unix:"):
        # Set before the socket exists: a moment later it would be open to everybody that the umask
        # allows.
        before = os.umask(0o777 & ~unix_mode)
        try:
            return server.add_insecure_port(address)
        finally:
            os.umask(before)
    if tls is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, tls)


def _refusal(address: str) -> ConfigurationError:
    place = (
        "its folder does not exist or is not writable; create the folder, or choose another path"
        if address.startswith("unix:")
        else "it is in use by another process, or is not an address of this machine; stop that "
        "process, or choose another address"
    )
    return ConfigurationError(f"cannot listen on {address}: {place}", address=address)


def _make_way(path: str) -> None:
    """Refuse a socket on which another server answers; gRPC would silently replace it.

    Raises:
        ConfigurationError: A server answers, or the path is not a socket.
    """
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"cannot listen on unix:{path}: a file of that name exists")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return
    raise ConfigurationError(
        f"cannot listen on unix:{path}: it is in use by another server; stop that server, or "
        "choose another path"
    )
