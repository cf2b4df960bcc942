"""Pieces of shared memory, and the records that say what is in them.

A process that reads for its host, the hub, writes each event into a piece, a file in memory, and
hands its peers a descriptor that they can only read from. What goes over their sockets is small.
"""

from __future__ import annotations

import os
import socket
import struct
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StreamCorruptError

_RECORD = struct.Struct("<IIQQQ")
_TAKEN = struct.Struct("<Q")
_NOTHING = np.empty(0, np.uint8)
_SPARE_BYTES = 1 << 20


class Kind(IntEnum):
    """What a record says.

    START, BATCH, EPOCH_END, END and FAILURE tell what the stream brings, in its order. BEAT is a
    sign of life, GONE ends the use of a piece, AWAY refuses a peer, which is elsewhere, and BROKEN
    all of them, as there is no memory to share.
    """

    START = 1
    BATCH = 2
    EPOCH_END = 3
    END = 4
    FAILURE = 5
    BEAT = 6
    GONE = 7
    AWAY = 8
    BROKEN = 9


class Record(NamedTuple):
    """A record from a hub to its peers.

    Attributes:
        kind: What it says.
        piece: The number of the piece that holds it; 0 for none.
        number: That of the event, counted from 1.
        head_bytes: Bytes of the message at the start of the piece.
        payload_bytes: Bytes of the payload after it.
    """

    kind: Kind
    piece: int = 0
    number: int = 0
    head_bytes: int = 0
    payload_bytes: int = 0

    def packed(self) -> bytes:
        """Write it down."""
        return _RECORD.pack(*self)


def receive(connection: socket.socket) -> tuple[Record | None, int]:
    """Return the next record of a hub, None at the end, and a descriptor, -1 for none.

    Raises:
        TimeoutError: Nothing came in the connection's time.
        StreamCorruptError: What came is no record.
    """
    try:
        said, fds = _received(connection)
    except ConnectionResetError:
        # Said once, when the hub did not read all that we sent; what it sent before still comes.
        said, fds = _received(connection)
    if not said:
        return None, -1
    try:
        kind, *rest = _RECORD.unpack(said)
        return Record(Kind(kind), *rest), fds[0] if fds else -1
    except (struct.error, ValueError) as error:
        raise StreamCorruptError(
            f"a record of {len(said)} bytes makes no sense: {error}"
        ) from error


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    said, fds, _, _ = socket.recv_fds(connection, _RECORD.size, 1, socket.MSG_CMSG_CLOEXEC)
    return said, fds


def taken(number: int) -> bytes:
    """Write down that a peer has taken all events up to one, and needs their pieces no more."""
    return _TAKEN.pack(number)


def read_taken(said: bytes) -> int:
    """Return the number of the event.

    Raises:
        ValueError: It is not written as `taken` writes it.
    """
    try:
        return int(_TAKEN.unpack(said)[0])
    except struct.error as error:
        raise ValueError(f"{len(said)} bytes say nothing about an event") from error


class Piece:
    """A piece that this process writes, and others may only read.

    Attributes:
        number: Its number, never 0.
        size: Bytes that it takes up.
        shown: A descriptor for others.
    """

    def __init__(self, number: int) -> None:
        """Make an empty one.

        Raises:
            OSError: This machine has no descriptors left, or no such files.
        """
        self.number, self.size = number, 0
        self._own = os.memfd_create("headrace-share", os.MFD_CLOEXEC)
        try:
            os.fchmod(self._own, 0o600)
            self.shown = os.open(f"/proc/self/fd/{self._own}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._own)
            raise

    def write(self, head: bytes, payload: NDArray[np.uint8] = _NOTHING) -> None:
        """Replace what it holds.

        Raises:
            OSError: There is no memory left.
        """
        size = len(head) + payload.nbytes
        if self.size > 2 * size + _SPARE_BYTES:
            os.ftruncate(self._own, size)
            self.size = size
        at, views = 0, [memoryview(head), payload.data]
        while at < size:
            wrote = os.pwritev(self._own, views, at)
            at, views = at + wrote, _after(views, wrote)
        self.size = max(self.size, size)

    def close(self) -> None:
        """Close it; the memory is free when nobody reads from it any more."""
        for fd in (self._own, self.shown):
            os.close(fd)


def read(fd: int, record: Record, payload: NDArray[np.uint8]) -> bytes:
    """Copy the payload of a record into memory, and return its message.

    Args:
        fd: A descriptor of its piece.
        record: The record.
        payload: ``(payload_bytes,) uint8``.

    Raises:
        StreamCorruptError: The piece is shorter.
    """
    head = bytearray(record.head_bytes)
    at, size, views = 0, len(head) + payload.nbytes, [memoryview(head), payload.data]
    while at < size:
        count = os.preadv(fd, views, at)
        if not count:
            raise StreamCorruptError(f"a piece ends after {at} bytes; its record says {size}")
        at, views = at + count, _after(views, count)
    return bytes(head)


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what follows the first bytes of views."""
    rest = []
    for view in views:
        skipped = min(count, view.nbytes)
        count -= skipped
        if skipped < view.nbytes:
            rest.append(view[skipped:])
    return rest
