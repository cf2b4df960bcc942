"""Write the messages of a stream as bytes.

protobuf would copy a payload twice on its way into a message and out again. The payload is the
last field, so a message is its head, serialised as usual, followed by the field's tag, length
and bytes. The head's length is known before the payload is, so the payload is written straight
into the message: no copy.
"""

from __future__ import annotations

import functools
import itertools
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.payload import PayloadLayout
from headrace.server.batch.chunked_payload import PayloadParts, Pieces
from headrace.server.batch.uninitialised_bytes import fresh_bytes, raw_bytes
from headrace.server.kernels.loader import KERNELS, Loader
from headrace.v1 import shard_service_pb2 as pb

_PAYLOAD_FIELD = 1000
_LENGTH_DELIMITED = 2
_BATCH_FIELD = 2
_PADDING_FIELD = 15
_MESSAGES_FIELD = 7
_PREFIX_BYTES = 5  # of a response in one that holds several: a tag, and a length below 256 MiB
_EMPTY_FIELD_BYTES = 2
_ALIGNMENT = 64
# Stands for the payload's hash until that is known; any but 0 takes as many bytes. No other field
# can hold these bytes behind that tag: a number before the hash would have to be above 2**55.
_HASH_TAG = b"\x49"
_ANY_HASH_BYTES = b"\xff" * 7 + b"\xfe"
_ANY_HASH_FIELD = _HASH_TAG + _ANY_HASH_BYTES
_ANY_HASH = int.from_bytes(_ANY_HASH_BYTES, "little")


def message_frame(response: pb.ReadBatchesResponse) -> bytes:
    """Return a message without payload as it goes to the wire."""
    return response.SerializeToString()


class BatchFrames:
    """The messages of one batch, whose payload is yet to be written.

    Args:
        header: The batch; its fields about the payload are filled in here.
        layout: Of the payload.
        max_chunk_bytes: Greatest part of the payload in one message.
        kernels: The compiled functions, if they are there.
    """

    def __init__(
        self,
        header: pb.BatchHeader,
        layout: PayloadLayout,
        *,
        max_chunk_bytes: int,
        kernels: Loader = KERNELS,
    ) -> None:
        header.buffer_bytes.extend(layout.lengths)
        header.payload_bytes = layout.size
        header.payload_xxh3 = _ANY_HASH
        self._header = header
        self._chunk_bytes = max_chunk_bytes
        self._messages: list[bytes] = []
        parts: list[NDArray[np.uint8]] = []
        is_whole = 0 < layout.size <= max_chunk_bytes
        self._between_bytes = len(_tagged(layout.size)) if is_whole else 0
        head = _head_of(header.SerializeToString(), self._between_bytes)
        self._head_bytes = len(head)
        # A hash lies where the one that stands for it does.
        at = head.index(_ANY_HASH_FIELD) + len(_HASH_TAG)
        self._hash = self._add(head, layout.size, parts)[at : at + len(_ANY_HASH_BYTES)]
        for begin in range(max_chunk_bytes, layout.size, max_chunk_bytes):
            response = pb.ReadBatchesResponse(chunk=pb.Chunk(payload_offset=begin))
            self._add(response.SerializeToString(), layout.size - begin, parts)
        self._parts = PayloadParts(parts, part_bytes=max_chunk_bytes, kernels=kernels)

    def pieces(self, begin: int, end: int) -> Pieces:
        """Return where the payload's bytes ``[begin, end)`` go; ask for them in order."""
        return self._parts.pieces(begin, end)

    def finish(self) -> list[bytes]:
        """Return the messages, when all of the payload is written; call it once, last."""
        self._header.payload_xxh3 = found = self._parts.end()
        if found:
            self._hash[:] = memoryview(found.to_bytes(8, "little"))
        else:
            # It takes no space.
            head = _head_of(self._header.SerializeToString(), self._between_bytes)
            self._messages[0] = head + self._messages[0][self._head_bytes :]
        del self._hash
        return self._messages

    def _add(self, head: bytes, rest: int, parts: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Make the message that begins with ``head``, and has as much of the rest as it may."""
        length = min(self._chunk_bytes, rest)
        tagged = head + _tagged(length) if length else head
        # The result must be `bytes`: for anything else grpcio's thread raises and the call never
        # ends.
        message, array = fresh_bytes(len(tagged) + length)
        array[: len(tagged)] = memoryview(tagged)
        self._messages.append(message)
        parts.append(array[len(tagged) :])
        return array


# Made for each batch: classes of their own would take as many calls again.
Target: TypeAlias = tuple[bytes, int, int, int]
"""Where a batch goes that is in one piece: what precedes its payload, the payload's address and
length, and the address of what takes its hash, 0 for nothing."""

Finished: TypeAlias = tuple[bytes, int]
"""A message, empty where batches lie elsewhere, and how many batches it is or stands for."""


class WholeMessages:
    """Batches, each whole in one message, whose payloads are yet to be written.

    Args:
        group_bytes: Greatest size of a message that holds others; 0 where none may.
    """

    def __init__(self, *, group_bytes: int = 0) -> None:
        self._group_bytes = group_bytes
        # Of the message that is laid out: what precedes each payload, and the payload's bytes.
        self._open: list[tuple[bytes, int]] = []
        self._open_bytes = 0
        self._targets: list[Target] = []
        self._finished: list[Finished] = []

    def add(self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...]) -> None:
        """Take one batch more; all of its header is filled in but the hash."""
        del buffer_bytes
        header.payload_xxh3 = _ANY_HASH
        body, size = header.SerializeToString(), header.payload_bytes
        if self._group_bytes:
            if self._hold(body, size):
                return
            if self._open:
                self._close()
                if self._hold(body, size):
                    return
        tail = _tagged(size)
        head = _head_of(body, len(tail)) + tail
        self._open.append((head, size))
        self._open_bytes = len(head) + size
        self._close()

    def find(self) -> list[Target]:
        """Return where each batch goes."""
        if self._open:
            self._close()
        return self._targets

    def finish(self) -> list[Finished]:
        """Return the messages, when all is written."""
        return self._finished

    def _hold(self, body: bytes, size: int) -> bool:
        """Put a batch into the message that holds others; return whether there was room."""
        begin = self._open_bytes + _PREFIX_BYTES
        tail = _tagged(size)
        head = _head_of(body, begin % _ALIGNMENT + len(tail)) + tail
        response_bytes = len(head) + size
        if begin + response_bytes > self._group_bytes:
            return False
        self._open.append((_prefix(response_bytes) + head, size))
        self._open_bytes = begin + response_bytes
        return True

    def _close(self) -> None:
        """Make the message that was laid out."""
        message, address = raw_bytes(self._open_bytes)
        self._finished.append((message, len(self._open)))
        for head, size in self._open:
            # A hash of 0 takes as many bytes here, which protobuf would leave out.
            hash_at = address + head.index(_ANY_HASH_FIELD) + len(_HASH_TAG)
            address += len(head)
            self._targets.append((head, address, size, hash_at))
            address += size
        self._open, self._open_bytes = [], 0


def _tagged(payload_bytes: int) -> bytes:
    """Return what stands right before a payload."""
    return _TAG + _varint(payload_bytes)


def _head_of(body: bytes, between_bytes: int) -> bytes:
    """Return what `message_frame` would of a response with a batch, but for the payload.

    Args:
        body: The batch's header, encoded, without padding.
        between_bytes: As for `_around`.
    """
    before, padding = _around(len(body), between_bytes)
    return before + body + padding


# The headers of a stream have few lengths.
@functools.lru_cache(maxsize=4096)
def _around(body_bytes: int, between_bytes: int) -> tuple[bytes, bytes]:
    """Return what precedes an encoded header, and its field of padding, which is its last.

    Args:
        body_bytes: Length of the header without padding.
        between_bytes: How much lies between the header and a payload that is to begin at a multiple
            of 64 bytes in gRPC's message, and before the response in that; 0 for no padding.
    """
    padded = body_bytes
    if between_bytes:
        # The length takes as many bytes as without padding, or one more.
        for length_bytes in itertools.count(len(_varint(body_bytes))):
            missing = -(len(_BATCH_TAG) + length_bytes + body_bytes + between_bytes) % _ALIGNMENT
            padded = body_bytes + missing
            # One byte is no field, and two are one that protobuf would leave out.
            if 0 < missing <= _EMPTY_FIELD_BYTES or len(_varint(padded)) < length_bytes:
                padded += _ALIGNMENT
            if len(_varint(padded)) == length_bytes:
                break
    before = _BATCH_TAG + _varint(padded)
    if padded == body_bytes:
        return before, b""
    zeros = bytes(padded - body_bytes - _EMPTY_FIELD_BYTES)
    return before, _PADDING_TAG + _varint(len(zeros)) + zeros


def _prefix(response_bytes: int) -> bytes:
    """Return what precedes a response in one that holds several.

    Its length always takes as many bytes, so that what follows lies where it is known to before
    that length is: protobuf reads a number that is longer than it need be.
    """
    return _MESSAGES_TAG + bytes(
        (
            response_bytes & 0x7F | 0x80,
            response_bytes >> 7 & 0x7F | 0x80,
            response_bytes >> 14 & 0x7F | 0x80,
            response_bytes >> 21,
        )
    )


def _varint(value: int) -> bytes:
    # Most are of one to three bytes, and every batch has some.
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80,)) + _varint(value >> 7)


_TAG = _varint(_PAYLOAD_FIELD << 3 | _LENGTH_DELIMITED)
_BATCH_TAG = _varint(_BATCH_FIELD << 3 | _LENGTH_DELIMITED)
_PADDING_TAG = _varint(_PADDING_FIELD << 3 | _LENGTH_DELIMITED)
_MESSAGES_TAG = _varint(_MESSAGES_FIELD << 3 | _LENGTH_DELIMITED)
