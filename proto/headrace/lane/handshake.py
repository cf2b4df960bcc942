"""The handshake: what each side sends before the first frame.

The client shows its ticket, and proves that it knows the bearer token of the call that the ticket
was offered to, without sending it.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

from headrace.errors import NoTransportError, StreamCorruptError

TICKET_BYTES = 16
_PROOF_BYTES = 32
_HELLO = struct.Struct(f"8s{TICKET_BYTES}s{_PROOF_BYTES}s")
_MAGIC = b"HRLANE\x00\x01"
_REFUSAL = b"HRNONE\x00\x01"

HELLO_BYTES = _HELLO.size
ANSWER_BYTES = len(_MAGIC)


class Hello(NamedTuple):
    """What a client shows."""

    ticket: bytes
    proof: bytes


def proof_of(bearer: bytes, ticket: bytes) -> bytes:
    """Return what proves that a client knows a bearer token; without one the token is empty."""
    return hmac.digest(hashlib.sha256(bearer).digest(), _MAGIC + ticket, "sha256")


def hello(ticket: bytes, *, bearer: bytes) -> bytes:
    """Return the first bytes of a client."""
    return _HELLO.pack(_MAGIC, ticket, proof_of(bearer, ticket))


def read_hello(received: bytes) -> Hello | None:
    """Return what a client shows; None if that is no hello of this version."""
    magic, ticket, proof = _HELLO.unpack(received)
    return Hello(ticket, proof) if magic == _MAGIC else None


def answer(*, is_let_in: bool) -> bytes:
    """Return the first bytes of a server."""
    return _MAGIC if is_let_in else _REFUSAL


def read_answer(received: bytes) -> None:
    """Check the first bytes of a server.

    Raises:
        NoTransportError: The server lets this client not in.
        StreamCorruptError: They are not those of a lane.
    """
    if received == _REFUSAL:
        raise NoTransportError("it does not know this stream's ticket, or not from this client")
    if received != _MAGIC:
        raise StreamCorruptError(f"the lane started with {received.hex()}; expected {_MAGIC.hex()}")
