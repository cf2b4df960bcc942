"""What passes on a lane, as bytes."""

from __future__ import annotations

import struct

import pytest

from headrace.errors import NoTransportError, StreamCorruptError
from headrace.lane import (
    Frame,
    answer,
    end_frame,
    frame,
    hello,
    proof_of,
    read_answer,
    read_frame,
    read_hello,
)

_TICKET = bytes(range(16))


def test_a_hello_is_these_bytes() -> None:
    """So that another language can say it: SHA-256 and HMAC of the token, never the token."""
    said = hello(_TICKET, bearer=b"secret")

    assert b"HRLANE\x00\x01" + _TICKET == said[:24]
    assert "acd8422269b34c7fc92325e968253ee03d87cf48659eae1cdd6e0b6ff892972a" == said[24:].hex()
    assert proof_of(b"secret", _TICKET) == said[24:]
    assert b"secret" not in said
    assert (_TICKET, said[24:]) == read_hello(said)
    assert proof_of(b"other", _TICKET) != proof_of(b"secret", _TICKET)


def test_another_hello_is_none() -> None:
    """As from a scanner, or a client of another version."""
    assert read_hello(b"GET / HTTP/1.1\r\n".ljust(56)) is None


def test_answers_are_told_apart() -> None:
    """A refusal is no fault of the bytes; anything else is."""
    read_answer(answer(is_let_in=True))
    with pytest.raises(NoTransportError, match="ticket"):
        read_answer(answer(is_let_in=False))
    with pytest.raises(StreamCorruptError, match="485454502f312e31"):
        read_answer(b"HTTP/1.1")


def test_frames_are_these_bytes() -> None:
    """The number, the bytes before the payload, and those of the payload, little-endian."""
    assert struct.pack("<IIQ", 7, 300, 2 << 20) == frame(7, 300, 2 << 20)
    assert Frame(300, 2 << 20) == read_frame(frame(7, 300, 2 << 20), 7)
    assert Frame(0, 0) == read_frame(end_frame((1 << 32) + 2), (1 << 32) + 2)


@pytest.mark.parametrize(
    "received",
    [
        frame(6, 300, 10),
        frame(8, 300, 10),
        frame(7, 0, 10),
        frame(7, (4 << 20) + 1, 0),
        frame(7, 300, (4 << 20) + 1),
        frame(7, 300, (1 << 64) - 1),
    ],
    ids=["older", "newer", "headless", "head", "payload", "huge"],
)
def test_frames_that_cannot_be_are_refused(received: bytes) -> None:
    """Out of order, without a head, or larger than anything that is received."""
    with pytest.raises(StreamCorruptError, match="frame 7 of the lane"):
        read_frame(received, 7)
