"""Frames: what precedes each message on the lane."""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.errors import StreamCorruptError

_FRAME = struct.Struct("<IIQ")
FRAME_BYTES = _FRAME.size
_NUMBERS = 1 << 32

_MOST_BYTES = 4 << 20
"""Of a head, and of a payload: gRPC's clients accept no larger message, so servers make none."""


class Frame(NamedTuple):
    """What follows a frame.

    Attributes:
        head_bytes: Bytes of the message before its payload, or of all of it; 0 at the end of the
            stream.
        payload_bytes: Bytes of the payload that follow them.
    """

    head_bytes: int
    payload_bytes: int


def frame(number: int, head_bytes: int, payload_bytes: int) -> bytes:
    """Return the frame of a message.

    Args:
        number: How many frames came before it.
        head_bytes: See `Frame`.
        payload_bytes: See `Frame`.
    """
    return _FRAME.pack(number % _NUMBERS, head_bytes, payload_bytes)


def end_frame(number: int) -> bytes:
    """Return the frame that ends a stream whose messages have all been sent."""
    return frame(number, 0, 0)


def read_frame(received: bytes | bytearray, number: int) -> Frame:
    """Return what follows a frame.

    Args:
        received: The frame.
        number: How many frames came before it.

    Raises:
        StreamCorruptError: It is not the next one, or says what cannot be.
    """
    found, head_bytes, payload_bytes = _FRAME.unpack(received)
    if found != number % _NUMBERS or (payload_bytes and not head_bytes):
        raise StreamCorruptError(
            f"frame {number} of the lane has number {found}, {head_bytes} bytes and "
            f"{payload_bytes} of payload; the connection is damaged"
        )
    if head_bytes > _MOST_BYTES or payload_bytes > _MOST_BYTES:
        raise StreamCorruptError(
            f"frame {number} of the lane has {head_bytes} bytes and {payload_bytes} of payload; "
            f"expected at most {_MOST_BYTES} of each"
        )
    return Frame(head_bytes, payload_bytes)
