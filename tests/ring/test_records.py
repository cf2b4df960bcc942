"""Tests of the ring's records and handshake."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import NoTransportError, StreamCorruptError
from headrace.ring import (
    HELLO_BYTES,
    RECORD_BYTES,
    Record,
    RecordKind,
    RecordReader,
    hello,
    read_hello,
    record,
    refusal,
    ring_socket_of,
)

_GOLDEN = bytes.fromhex("01000000 00000000 4000000000000000 0700000000000000")
_RECORDS = st.builds(
    Record,
    st.sampled_from(RecordKind),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)


def test_a_record_has_these_bytes() -> None:
    """A kind of 32 bits, zeros, and two numbers of 64, little-endian."""
    assert _GOLDEN == record(RecordKind.SLOT, 64, 7)
    assert 24 == RECORD_BYTES
    assert [1, 2, 3, 17, 18] == [int(kind) for kind in RecordKind]


def test_a_handshake_has_these_bytes() -> None:
    """The size of a ring behind one magic, the length of a reason behind another."""
    assert bytes.fromhex("485252494e470001 0000100000000000") == hello(1 << 20)
    assert bytes.fromhex("48524e4f4e450001 0200000000000000") + b"no" == refusal("no")
    assert "/run/s.sock.ring" == ring_socket_of("/run/s.sock")


@given(st.lists(_RECORDS, max_size=20), st.lists(st.integers(0, 480), max_size=5))
def test_records_come_out_however_they_are_cut(records: list[Record], cuts: list[int]) -> None:
    """A socket may give any part of them at a time."""
    stream = b"".join(record(*each) for each in records)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = RecordReader()

    found = [
        each for start, end in itertools.pairwise(edges) for each in reader.feed(stream[start:end])
    ]

    assert records == found


@pytest.mark.parametrize(
    "damaged",
    [bytes(24), b"\x04" + _GOLDEN[1:], _GOLDEN[:4] + b"\x01" + _GOLDEN[5:], b"\xff" * 24],
)
def test_what_is_no_record_is_refused(damaged: bytes) -> None:
    """Unknown kinds, and bytes where zeros belong."""
    with pytest.raises(StreamCorruptError, match="expected one of the kinds 1, 2, 3, 17, 18"):
        RecordReader().feed(damaged)


def test_a_refusal_says_why() -> None:
    """The server's words reach whoever asked for the ring."""
    with pytest.raises(NoTransportError, match="user 7 may have none"):
        read_hello(refusal("user 7 may have none"))


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        hello(4096)[:-1],
        hello(4096) + b"x",
        hello(0),
        bytes(HELLO_BYTES),
        b"HTTP/1.1 400 Bad Request\r\n",
    ],
)
def test_what_is_no_handshake_is_refused(damaged: bytes) -> None:
    """Nothing, too little, too much, an empty ring, and what others say."""
    with pytest.raises(StreamCorruptError, match="expected 485252494e470001"):
        read_hello(damaged)
