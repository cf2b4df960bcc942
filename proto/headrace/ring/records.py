"""Records: the messages of 24 bytes that server and client send over the ring's socket."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from headrace.errors import StreamCorruptError

# Kind (32 bits, then 32 zeros), start of the slot, its generation; little-endian.
_LAYOUT = struct.Struct("<QQQ")
RECORD_BYTES = _LAYOUT.size


class RecordKind(IntEnum):
    """What a record says; `docs/ring.md` has the rules."""

    SLOT = 1
    """Server: the next event of the stream is the batch in this slot."""
    WIRE = 2
    """Server: the next event, or part of one, is the next message of the call."""
    FULL = 3
    """Server: the ring has no room for the next batch."""
    RELEASE = 17
    """Client: this slot may be written again."""
    HUNGRY = 18
    """Client: everything before that ``FULL`` is taken, and all free slots are released."""


_KINDS = {int(kind): kind for kind in RecordKind}
# Twice as fast as the named tuple's own constructor, which handles names of arguments.
_new = tuple.__new__


class Record(NamedTuple):
    """One record.

    Attributes:
        kind: What it says.
        start: Where the slot starts in the ring, in bytes; 0 without a slot.
        generation: The generation of the slot; 0 without a slot.
    """

    kind: RecordKind
    start: int = 0
    generation: int = 0


def record(kind: RecordKind, start: int = 0, generation: int = 0) -> bytes:
    """Return a record as it travels."""
    return _LAYOUT.pack(kind, start, generation)


def releases(slots: Iterable[tuple[int, int]]) -> bytes:
    """Return records that release slots.

    Args:
        slots: Start and generation of each slot.
    """
    kind = int(RecordKind.RELEASE)
    return b"".join([_LAYOUT.pack(kind, start, generation) for start, generation in slots])


class RecordReader:
    """Cuts the bytes that a socket receives into records."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[Record]:
        """Return the records that are complete now.

        Raises:
            StreamCorruptError: The bytes are not records.
        """
        return [
            _new(Record, (_KINDS.get(kind) or kind_of(kind), start, generation))
            for kind, start, generation in self.cut(received)
        ]

    def cut(self, received: bytes) -> list[tuple[int, int, int]]:
        """Return the complete records as numbers, without checking their kinds.

        Making a `Record` of the numbers would take a fourth of the time of opening a slot.
        """
        if self._rest:
            received = self._rest + received
        end = len(received) - len(received) % RECORD_BYTES
        self._rest = received[end:]
        return list(_LAYOUT.iter_unpack(received[:end]))


def kind_of(number: int) -> RecordKind:
    """Return the kind that a record's first number stands for.

    Raises:
        StreamCorruptError: There is no such kind.
    """
    kind = _KINDS.get(number)
    if kind is None:
        zeros, low = divmod(number, 1 << 32)
        raise StreamCorruptError(
            f"the ring's socket sent a record of kind {low} with {zeros} in place of zeros; "
            f"expected one of the kinds {', '.join(str(int(kind)) for kind in RecordKind)}"
        )
    return kind
