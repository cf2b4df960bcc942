"""Connect to a lane: find its address, encrypt as the call does, and show the ticket.

Nothing here waits longer than `_CONNECT_S` for a connection, or `_ANSWER_S` for an answer.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack

from headrace.client.options.access import Access
from headrace.client.servers.endpoints import Endpoint, split_address
from headrace.errors import NoTransportError
from headrace.lane import ANSWER_BYTES, VERSION, hello, read_answer
from headrace.v1 import lane_pb2 as pb

_CONNECT_S = 1.0
"""Where the port is filtered nothing answers; a kernel that does needs a round trip."""
_ANSWER_S = 5.0
"""For the handshake of TLS, and for the server's answer, which it sends at once."""
_SCHEME = "Bearer "


def connected(
    endpoint: Endpoint, offer: pb.LaneOffer, metadata: tuple[tuple[str, str], ...]
) -> socket.socket:
    """Return a connection on which the frames of a stream follow.

    Args:
        endpoint: The server.
        offer: Where its lane is.
        metadata: The metadata of the call that got the offer.

    Raises:
        NoTransportError: It cannot be reached from here, or the server refuses.
        StreamCorruptError: Something else answers there.
    """
    if offer.version != VERSION:
        raise NoTransportError(f"it has version {offer.version}, but this client knows {VERSION}")
    _, port = split_address(endpoint.address)
    if port not in map(str, offer.grpc_ports):
        raise NoTransportError(
            f"the call went to port {port}, but the server listens on "
            f"{', '.join(map(str, offer.grpc_ports))}, so a proxy is between"
        )
    context = _context(endpoint.access, offer)
    failures = []
    for host in _hosts(endpoint, offer):
        try:
            connection = socket.create_connection((host, offer.port), _CONNECT_S)
        except OSError as error:
            failures.append(f"{host} port {offer.port} ({error})")
            continue
        with ExitStack() as opened:
            opened.callback(connection.close)
            try:
                connection.settimeout(_ANSWER_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    connection = context.wrap_socket(connection, server_hostname=_name_of(endpoint))
                    opened.callback(connection.close)
                connection.sendall(hello(offer.ticket, bearer=_bearer(metadata)))
                read_answer(_answer(connection))
            except OSError as error:
                raise NoTransportError(
                    f"its port {offer.port} at {host} does not work ({error})"
                ) from error
            opened.pop_all()
        return connection
    raise NoTransportError(f"it cannot be reached at {' or '.join(failures)}")


def _context(access: Access, offer: pb.LaneOffer) -> ssl.SSLContext | None:
    """Return what encrypts as the call does; None for plain text."""
    tls = access.tls
    if (tls is not None) != offer.is_encrypted:
        found, wanted = ("no TLS", "TLS") if tls else ("TLS", "none")
        raise NoTransportError(
            f"it has {found}, and the call {wanted}, as behind a proxy that ends TLS"
        )
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise NoTransportError(f"the files of its TLS cannot be read ({error})") from error
    return context


def _hosts(endpoint: Endpoint, offer: pb.LaneOffer) -> Iterator[str]:
    """Yield the address that the server names, then that of the call, as behind a published port.

    A server names no other host than by its number, so nothing is looked up for it.
    """
    try:
        yield str(ipaddress.ip_address(offer.host))
    except ValueError as error:
        raise NoTransportError(
            f"its address is {offer.host[:100]!r}; expected an IP address"
        ) from error
    called, _ = split_address(endpoint.address)
    if called != offer.host:
        yield called


def _name_of(endpoint: Endpoint) -> str:
    """Return the name that the server's certificate must have, as gRPC checks it."""
    return split_address(endpoint.access.authority or endpoint.address)[0]


def _bearer(metadata: tuple[tuple[str, str], ...]) -> bytes:
    found = dict(metadata).get("authorization", "")
    return found.removeprefix(_SCHEME).encode()


def _answer(connection: socket.socket) -> bytes:
    said = b""
    while len(said) < ANSWER_BYTES:
        more = connection.recv(ANSWER_BYTES - len(said))
        if not more:
            raise ConnectionError("the connection was closed without an answer")
        said += more
    return said
