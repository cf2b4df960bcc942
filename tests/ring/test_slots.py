"""Tests of the slots of a ring: their bytes, and that none is taken for another."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.errors import StreamCorruptError
from headrace.ring import (
    SLOT_HEADER_BYTES,
    open_slot,
    payload_start,
    seal_slot,
    void_slot,
)

_MESSAGE, _PAYLOAD = b"message", bytes(range(100))
_START, _GENERATION, _LAYOUT = 256, 5, 3


def _ring(size: int = 1024) -> NDArray[np.uint8]:
    """A ring with one slot in it."""
    ring = np.full(size, 0xEE, np.uint8)
    start = payload_start(len(_MESSAGE))
    slot = ring[_START : _START + start + len(_PAYLOAD)]
    slot[start:] = np.frombuffer(_PAYLOAD, np.uint8)
    seal_slot(
        slot,
        generation=_GENERATION,
        message=_MESSAGE,
        start=start,
        payload_bytes=len(_PAYLOAD),
        layout=_LAYOUT,
    )
    return ring


def _forged(generation: int, start: int, payload_bytes: int, message_bytes: int) -> bytes:
    """A header whose checksum is right and whose numbers may be anything."""
    fields = struct.pack(
        "<8sQQQQ16x", b"HRSLOT\x00\x01", generation, start, payload_bytes, message_bytes
    )
    message = bytes(_ring()[_START + 64 :][:message_bytes])
    return fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields + message))


def test_a_slot_has_these_bytes() -> None:
    """Magic, generation, the payload's start and length, the message's, layout, checksum."""
    assert bytes.fromhex(
        "4852534c4f540001 0500000000000000 8000000000000000 6400000000000000"
        "0700000000000000 0300000000000000 0000000000000000"
    ) == bytes(_ring()[_START : _START + 56])
    assert 0x4821995DF277E0CA == int(_ring()[_START + 56 : _START + 64].view("<u8")[0])
    assert 64 == SLOT_HEADER_BYTES


def test_a_slot_is_read_as_it_was_written() -> None:
    """Message, layout and payload come out; the payload begins at a multiple of 64."""
    opened = open_slot(_ring().data, start=_START, generation=_GENERATION)

    assert (_MESSAGE, _LAYOUT) == (opened.message, opened.layout)
    assert _PAYLOAD == bytes(_ring()[opened.payload_start : opened.payload_end])
    assert 0 == opened.payload_start % 64


def test_a_stale_slot_is_refused() -> None:
    """Another generation than was announced: the slot was written again, or not yet."""
    with pytest.raises(StreamCorruptError, match="generation 5; expected 6"):
        open_slot(_ring().data, start=_START, generation=6)


def test_a_slot_that_is_being_written_is_refused() -> None:
    """From the first byte on that a server writes to a slot again, nobody takes it."""
    ring = _ring()
    void_slot(ring[_START:])

    with pytest.raises(StreamCorruptError, match="expected 4852534c4f540001"):
        open_slot(ring.data, start=_START, generation=_GENERATION)


@given(st.integers(0, SLOT_HEADER_BYTES + len(_MESSAGE) - 1), st.integers(1, 255))
def test_any_damage_to_header_or_message_is_refused(place: int, flip: int) -> None:
    """A torn slot, wherever it is torn."""
    ring = _ring()
    ring[_START + place] ^= flip

    with pytest.raises(StreamCorruptError):
        open_slot(ring.data, start=_START, generation=_GENERATION)


@pytest.mark.parametrize("start", [1, 32, 63, 1024 - 32, 1024, 4096, 2**40, 2**63])
def test_a_slot_outside_the_ring_is_refused(start: int) -> None:
    """Also one that begins inside and ends outside, and one between two."""
    with pytest.raises(StreamCorruptError, match=f"slot at byte {start} of a ring of 1024"):
        open_slot(_ring().data, start=start, generation=_GENERATION)


@pytest.mark.parametrize(
    ("start", "payload_bytes", "message_bytes"),
    [
        (128, 641, 7),  # ends one byte behind the ring
        (128, 2**63, 7),
        (64, 100, 7),  # begins in the message
        (0, 100, 7),
        (100, 100, 7),  # not at a multiple of 64
        (2**62, 100, 7),
    ],
)
def test_a_hostile_header_is_refused(start: int, payload_bytes: int, message_bytes: int) -> None:
    """A right checksum does not make wrong numbers right."""
    ring = _ring()
    header = _forged(_GENERATION, start, payload_bytes, message_bytes)
    ring[_START : _START + 64] = np.frombuffer(header, np.uint8)

    with pytest.raises(StreamCorruptError, match="has a payload"):
        open_slot(ring.data, start=_START, generation=_GENERATION)
