"""Find a port that is free at every address of a name, or find out that it is in use.

gRPC listens at all addresses of a name such as ``localhost``, and succeeds if it gets one of them.
If another server has the port at the others, some clients would reach that server.
"""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Any

Place = tuple[socket.AddressFamily, tuple[Any, ...]]
"""A family of addresses, and an address with a port, as `socket.socket.bind` takes it."""

# To find a port that is free at several addresses; arbitrary.
_ATTEMPTS = 16

_LOCALHOST = ("127.0.0.1", "::1")


def free_places(host: str, port: int) -> list[Place]:
    """Return every address of a host, with a port that nobody listens on there.

    Addresses that are not of this machine are left out, as long as there is another one. A port
    whose users share it counts as in use, too.

    Args:
        host: A name or an address.
        port: The port; 0 picks a free one.

    Raises:
        OSError: The port is in use at one of the addresses, or none is of this machine.
    """
    addresses = _addresses(host)
    for _ in range(_ATTEMPTS - 1):
        try:
            return _tried(addresses, port)
        except OSError as error:
            # A port that was picked at one address may be in use at another.
            if port or error.errno != errno.EADDRINUSE:
                raise
    return _tried(addresses, port)


def _addresses(host: str) -> list[Place]:
    # gRPC uses both addresses of localhost, whatever the hosts file says.
    names = _LOCALHOST if host == "localhost" else (host,)
    found = {
        (family, place)
        for name in names
        for family, _, _, _, place in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    }
    return sorted(found)


def _tried(addresses: list[Place], port: int) -> list[Place]:
    """Bind to a port at all addresses at once, for a moment."""
    found: list[Place] = []
    missing = OSError("no address")
    with ExitStack() as stack:
        for family, place in addresses:
            try:
                probe = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                # Without SO_REUSEPORT, to detect a server that shares the port.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((place[0], port, *place[2:]))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
                missing = error
                continue
            found.append((family, probe.getsockname()))
            port = found[0][1][1]
    if not found:
        raise missing
    return found
