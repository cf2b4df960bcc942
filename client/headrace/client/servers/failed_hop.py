"""Say which hop failed, or keeps silent."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Final, Literal

from headrace.client.servers.endpoints import split_address
from headrace.errors import (
    HeadraceError,
    ObjectNotFoundError,
    ServerUnreachableError,
    StoreRefusedError,
    StoreUnavailableError,
    StreamCorruptError,
)

_OF_STORE: Final = (ObjectNotFoundError, StoreRefusedError, StoreUnavailableError)
_GONE: Final = ("refused", "closed", "reset", "GOAWAY", "EOF", "Broken pipe")
"""What gRPC says of a connection that the other side ended: its host answers."""
_PROBE_S: Final = 1.0


def failed_hop(error: HeadraceError) -> Literal["store", "server", "network"]:
    """Return the hop because of which a stream failed."""
    if isinstance(error, _OF_STORE):
        return "store"
    if isinstance(error, StreamCorruptError):
        return "network"
    if isinstance(error, ServerUnreachableError):
        return "server" if any(sign in error.message for sign in _GONE) else "network"
    return "server"


def silent_hop(address: str) -> Literal["server", "network"]:
    """Return the hop that keeps silent: the network if no connection can be made, within a second.

    Where a host answers but its server says nothing, the server is stuck. A name without a port of
    its own, as of a proxy, counts as a network that works.
    """
    scheme, _, path = address.partition(":")
    try:
        if scheme == "unix":
            with closing(socket.socket(socket.AF_UNIX)) as local:
                local.settimeout(_PROBE_S)
                local.connect(path)
            return "server"
        host, port = split_address(address)
        if port.isdigit():
            socket.create_connection((host, int(port)), timeout=_PROBE_S).close()
    except OSError:
        return "network"
    return "server"
