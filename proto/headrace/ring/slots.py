"""Slots: each holds one batch in the ring as a header, the batch's message and its payload."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import StreamCorruptError

# Magic, generation, start of the payload in the slot, bytes of the payload, bytes of the message,
# number of the layout, zeros; then the checksum.
_FIELDS = struct.Struct("<8sQQQQQ8x")
_CHECKSUM = struct.Struct("<Q")
_HEADER = struct.Struct("<8sQQQQQ8xQ")
_FIELDS_BYTES = _FIELDS.size
_MAGIC = b"HRSLOT\x00\x01"

SLOT_HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
SLOT_ALIGNMENT = 64
"""Slots, and the payloads in them, start at multiples of it."""

_new = tuple.__new__

_LIKELY_BYTES = 384
"""Bytes that are read at once: enough for header and message of most batches."""

_MOST_MESSAGE_BYTES = 4 << 20
"""The limit of gRPC too. A message is copied before its checksum is verified."""


# Made for each batch; a frozen dataclass would take three times as long.
class OpenSlot(NamedTuple):
    """The contents of a slot.

    Attributes:
        start: Where the slot starts, in bytes from the beginning of the ring.
        generation: Its generation.
        message: A serialised ``ReadBatchesResponse`` with the batch's header, without its payload.
        payload_start: Where the payload starts, in bytes from the beginning of the ring.
        payload_end: Where it ends.
        layout: Number of the layout; 0 for none. Batches of a stream with the same number have
            equal counts of samples and rows, and buffers of equal lengths.
    """

    start: int
    generation: int
    message: bytes
    payload_start: int
    payload_end: int
    layout: int


def payload_start(message_bytes: int) -> int:
    """Return where the payload starts in a slot with a message of this many bytes."""
    end = SLOT_HEADER_BYTES + message_bytes
    return end + -end % SLOT_ALIGNMENT


def void_slot(slot: NDArray[np.uint8]) -> None:
    """Invalidate a slot before it is written again, so that nobody takes it for a batch."""
    slot[:SLOT_HEADER_BYTES] = 0


def seal_slot(
    slot: NDArray[np.uint8],
    *,
    generation: int,
    message: bytes,
    start: int,
    payload_bytes: int,
    layout: int = 0,
) -> None:
    """Write the message and the header of a slot whose payload is written.

    Args:
        slot: ``(slot_bytes,) uint8``.
        generation: The generation of the slot, > 0; it rises by one from slot to slot of a stream.
        message: The batch's message.
        start: Where the payload starts in the slot; at least `payload_start` of the message.
        payload_bytes: Bytes of the payload.
        layout: Number of the batch's layout, or 0.
    """
    fields = _FIELDS.pack(_MAGIC, generation, start, payload_bytes, len(message), layout)
    digest = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields + message))
    head = fields + digest + message
    slot[: len(head)] = np.frombuffer(head, np.uint8)


def open_slot(ring: memoryview, *, start: int, generation: int) -> OpenSlot:
    """Read a slot that was announced.

    Args:
        ring: The bytes of the ring.
        start: Where the slot starts, in bytes.
        generation: The generation that the slot must have.

    Raises:
        StreamCorruptError: The slot lies outside the ring, is stale or torn, or was never written.
    """
    head = ring[start : start + _LIKELY_BYTES].tobytes()
    if start % SLOT_ALIGNMENT or len(head) < SLOT_HEADER_BYTES:
        raise _bad(start, f"{len(head)} bytes of header", "a slot inside", ring.nbytes)
    magic, found, payload, payload_bytes, message_bytes, layout, checksum = _HEADER.unpack_from(
        head
    )
    if magic != _MAGIC:
        raise _bad(start, f"{magic.hex()} first", _MAGIC.hex(), ring.nbytes)
    if found != generation:
        raise _bad(start, f"generation {found}", f"{generation}", ring.nbytes)
    end = SLOT_HEADER_BYTES + message_bytes
    if message_bytes > _MOST_MESSAGE_BYTES:
        raise _bad(start, f"a message of {message_bytes} bytes", "4 MiB at most", ring.nbytes)
    if end > _LIKELY_BYTES:
        head = ring[start : start + end].tobytes()
    message = head[SLOT_HEADER_BYTES:end]
    digest = xxhash.xxh3_64_intdigest(head[:_FIELDS_BYTES] + message)
    if checksum != digest:
        raise _bad(start, f"checksum {checksum:016x}", f"{digest:016x}", ring.nbytes)
    if payload % SLOT_ALIGNMENT or payload < end:
        raise _bad(start, f"a payload at {payload}", "one behind the message", ring.nbytes)
    first = start + payload
    last = first + payload_bytes
    if last > ring.nbytes:
        raise _bad(start, f"a payload up to {last}", "one inside", ring.nbytes)
    # Half the time of the named tuple's own constructor.
    return _new(OpenSlot, (start, generation, message, first, last, layout))


def _bad(start: int, found: str, wanted: str, ring_bytes: int) -> StreamCorruptError:
    return StreamCorruptError(
        f"the slot at byte {start} of a ring of {ring_bytes} has {found}; expected {wanted}"
    )
