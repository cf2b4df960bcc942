"""The handshake: what is sent over the ring's socket before the first record."""

from __future__ import annotations

import struct

from headrace.errors import NoTransportError, StreamCorruptError

# Magic, then the size of the ring, or of the text of a refusal that follows, in bytes.
_LAYOUT = struct.Struct("<8sQ")
_RING = b"HRRING\x00\x01"
_REFUSAL = b"HRNONE\x00\x01"

HELLO_BYTES = _LAYOUT.size
TICKET_BYTES = 16
REFUSAL_MOST_BYTES = 1024


def ring_socket_of(grpc_socket: str) -> str:
    """Return the path of the ring's socket, given that of a server's gRPC socket."""
    return f"{grpc_socket}.ring"


def hello(ring_bytes: int) -> bytes:
    """Return the message that accompanies the ring's descriptor."""
    return _LAYOUT.pack(_RING, ring_bytes)


def refusal(text: str) -> bytes:
    """Return the message of a server that refuses a ring, with its reason."""
    said = text.encode()[:REFUSAL_MOST_BYTES]
    return _LAYOUT.pack(_REFUSAL, len(said)) + said


def read_hello(received: bytes) -> int:
    """Return the size of the ring in bytes.

    Args:
        received: The whole first message: a `hello` or a `refusal`.

    Raises:
        NoTransportError: The server refuses; the message has its reason.
        StreamCorruptError: The message is neither.
    """
    if len(received) >= HELLO_BYTES:
        magic, size = _LAYOUT.unpack_from(received)
        if magic == _RING and len(received) == HELLO_BYTES and size > 0:
            return int(size)
        if magic == _REFUSAL:
            raise NoTransportError(received[HELLO_BYTES:].decode(errors="replace"))
    raise StreamCorruptError(
        f"the ring's socket started with {received[:HELLO_BYTES].hex()}; expected {_RING.hex()} "
        "and the size of a ring"
    )
