"""The handshake: what passes over the ring's socket before the first record."""

from __future__ import annotations

import struct

from headrace.errors import RingUnavailableError, StreamCorruptError

# Magic, then the ring's bytes, or those of the refusal's text that follows.
_LAYOUT = struct.Struct("<8sQ")
_RING = b"HRRING\x00\x01"
_REFUSAL = b"HRNONE\x00\x01"

HELLO_BYTES = _LAYOUT.size
TICKET_BYTES = 16
REFUSAL_MOST_BYTES = 1024


def ring_socket_of(grpc_socket: str) -> str:
    """Return the path of the ring's socket beside a server's for gRPC."""
    return f"{grpc_socket}.ring"


def hello(ring_bytes: int) -> bytes:
    """Return what comes with the ring's descriptor."""
    return _LAYOUT.pack(_RING, ring_bytes)


def refusal(text: str) -> bytes:
    """Return what comes in its place, with the reason."""
    said = text.encode()[:REFUSAL_MOST_BYTES]
    return _LAYOUT.pack(_REFUSAL, len(said)) + said


def read_hello(received: bytes) -> int:
    """Return the ring's bytes.

    Args:
        received: All that came with the first message: the descriptor's, or a refusal.

    Raises:
        RingUnavailableError: The server refuses, and says why.
        StreamCorruptError: Something else came.
    """
    if len(received) >= HELLO_BYTES:
        magic, size = _LAYOUT.unpack_from(received)
        if magic == _RING and len(received) == HELLO_BYTES and size > 0:
            return int(size)
        if magic == _REFUSAL:
            raise RingUnavailableError(received[HELLO_BYTES:].decode(errors="replace"))
    raise StreamCorruptError(
        f"the ring's socket started with {received[:HELLO_BYTES].hex()}; expected {_RING.hex()} "
        "and the size of a ring"
    )
