"""Write the messages of a stream as bytes.

protobuf would copy a payload twice on its way into a message and out again. The payload is the
last field, so a message is its head, serialised as usual, followed by the field's tag, length
and bytes. The head's length is known before the payload is, so the payload is written straight
into the message: no copy.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.server._fresh import fresh_bytes, raw_bytes
from headrace.server._payload import PayloadLayout
from headrace.v1 import shard_service_pb2 as pb

_PAYLOAD_FIELD = 1000
_LENGTH_DELIMITED = 2
_BATCH_FIELD = 2
_PADDING_FIELD = 15
_EMPTY_FIELD_BYTES = 2
_ALIGNMENT = 64
# Payloads of several messages are written and hashed in turn, so much at a time, which then still
# lies in the processor's second cache with what it was copied from.
_HASHED = 512 << 10
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
    """

    def __init__(
        self, header: pb.BatchHeader, layout: PayloadLayout, *, max_chunk_bytes: int
    ) -> None:
        header.buffer_bytes.extend(layout.lengths)
        header.payload_bytes = layout.size
        header.payload_xxh3 = _ANY_HASH
        self._header = header
        self._chunk_bytes = max_chunk_bytes
        self._messages: list[bytes] = []
        self._parts: list[NDArray[np.uint8]] = []
        self._digest: xxhash.xxh3_64 | None = None
        self._hashed_bytes = 0
        self._aligned_bytes = layout.size if layout.size <= max_chunk_bytes else 0
        head = _head_of(header, aligned_bytes=self._aligned_bytes)
        self._head_bytes = len(head)
        # A hash lies where the one that stands for it does.
        at = head.index(_ANY_HASH_FIELD) + len(_HASH_TAG)
        self._hash = self._add(head, layout.size)[at : at + len(_ANY_HASH_BYTES)]
        for begin in range(max_chunk_bytes, layout.size, max_chunk_bytes):
            response = pb.ReadBatchesResponse(chunk=pb.Chunk(payload_offset=begin))
            self._add(response.SerializeToString(), layout.size - begin)

    def pieces(self, begin: int, end: int) -> Sequence[NDArray[np.uint8]]:
        """Return where the payload's bytes ``[begin, end)`` go, in one array or several.

        Ask for them in order. Whoever goes through several has written each when he takes the
        next, and everything before.
        """
        if end <= self._chunk_bytes:
            return (self._parts[0][begin:end],)
        chunk, pieces = self._chunk_bytes, []
        for index in range(begin // chunk, -(-end // chunk)):
            first = index * chunk
            part = self._parts[index][max(0, begin - first) : end - first]
            pieces += [part[at : at + _HASHED] for at in range(0, part.size, _HASHED)]
        return _Pieces(self, pieces, begin)

    def hash_to(self, end: int) -> None:
        """Hash the payload up to there, which is written and still near the processor."""
        if self._digest is None:
            self._digest = xxhash.xxh3_64()
        while self._hashed_bytes < end:
            index, first = divmod(self._hashed_bytes, self._chunk_bytes)
            last = min(self._chunk_bytes, end - index * self._chunk_bytes)
            self._digest.update(self._parts[index][first:last].data)
            self._hashed_bytes = index * self._chunk_bytes + last

    def finish(self) -> list[bytes]:
        """Return the messages, when all of the payload is written; call it once, last."""
        if len(self._parts) == 1:
            found = xxhash.xxh3_64_intdigest(self._parts[0].data)
        else:
            self.hash_to(self._header.payload_bytes)
            assert self._digest is not None
            found = self._digest.intdigest()
        self._header.payload_xxh3 = found
        self._parts.clear()
        if found:
            self._hash[:] = memoryview(found.to_bytes(8, "little"))
        else:
            # It takes no space.
            head = _head_of(self._header, aligned_bytes=self._aligned_bytes)
            self._messages[0] = head + self._messages[0][self._head_bytes :]
        del self._hash
        return self._messages

    def _add(self, head: bytes, rest: int) -> NDArray[np.uint8]:
        """Make the message that begins with ``head``, and has as much of the rest as it may."""
        length = min(self._chunk_bytes, rest)
        tagged = head + _TAG + _varint(length) if length else head
        # The result must be `bytes`: for anything else grpcio's thread raises and the call never
        # ends.
        message, array = fresh_bytes(len(tagged) + length)
        array[: len(tagged)] = memoryview(tagged)
        self._messages.append(message)
        self._parts.append(array[len(tagged) :])
        return array


class WholeMessages:
    """Batches, each in one message, whose payloads are yet to be written.

    Attributes:
        heads: What is to precede each payload.
        targets: Of each: the address of its payload, its bytes, those of its head, and the address
            that is to take the payload's hash.
    """

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.targets: list[tuple[int, int, int, int]] = []
        self._messages: list[bytes] = []

    def add(self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...]) -> None:
        """Make the message of one batch more; all of its header is filled in but the hash."""
        del buffer_bytes
        header.payload_xxh3 = _ANY_HASH
        size = header.payload_bytes
        head = _head_of(header, aligned_bytes=size) + _TAG + _varint(size)
        head_bytes = len(head)
        # A hash of 0 takes as many bytes here, which protobuf would leave out.
        hash_at = head.index(_ANY_HASH_FIELD) + len(_HASH_TAG)
        message, address = raw_bytes(head_bytes + size)
        self.heads.append(head)
        self.targets.append((address + head_bytes, size, head_bytes, address + hash_at))
        self._messages.append(message)

    def finish(self) -> list[bytes]:
        """Return the messages, when all is written."""
        return self._messages


class _Pieces(Sequence[NDArray[np.uint8]]):
    """Places in a payload of several messages, which is hashed as it is written."""

    def __init__(self, frames: BatchFrames, places: list[NDArray[np.uint8]], begin: int) -> None:
        self._frames = frames
        self._places = places
        self._begin = begin

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> NDArray[np.uint8]: ...
    @overload
    def __getitem__(self, index: slice) -> list[NDArray[np.uint8]]: ...
    def __getitem__(self, index: int | slice) -> NDArray[np.uint8] | list[NDArray[np.uint8]]:
        return self._places[index]

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        end = self._begin
        for place in self._places:
            yield place
            end += place.size
            self._frames.hash_to(end)


def _head_of(header: pb.BatchHeader, *, aligned_bytes: int) -> bytes:
    """Return what `message_frame` would of a response with this batch, with one copy less.

    Args:
        header: The batch, without padding.
        aligned_bytes: Length of the payload that is to begin at a multiple of 64 bytes in the
            message, for which the head is padded; 0 for none.
    """
    body = header.SerializeToString()
    between_bytes = len(_TAG) + len(_varint(aligned_bytes)) if aligned_bytes else 0
    before, padding = _around(len(body), between_bytes)
    return before + body + padding


# The headers of a stream have few lengths.
@functools.lru_cache(maxsize=4096)
def _around(body_bytes: int, between_bytes: int) -> tuple[bytes, bytes]:
    """Return what precedes an encoded header, and its field of padding, which is its last.

    Args:
        body_bytes: Length of the header without padding.
        between_bytes: What lies between the header and the payload; 0 for no padding.
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
