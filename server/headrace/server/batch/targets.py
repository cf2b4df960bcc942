"""Where batches are written: into the messages of a call, or to another outlet.

protobuf would copy a payload twice, into a message and out of it. The payload is the last field, so
a message is its head, serialised as usual, followed by the field's tag, length and bytes. The
length of the head is known before the payload, so the payload is written directly into the message
without a copy.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.v1 import shard_service_pb2 as pb

_PAYLOAD_FIELD = 1000
_LENGTH_DELIMITED = 2
_BATCH_FIELD = 2
_PADDING_FIELD = 15
_MESSAGES_FIELD = 7
_PREFIX_BYTES = 5  # before a response in a group: a tag, and a length below 256 MiB
_EMPTY_FIELD_BYTES = 2
_ALIGNMENT = 64
# Placeholder for the payload's hash; all values but 0 take the same bytes. No other field can
# contain these bytes after that tag: a number before the hash would have to be above 2**55.
_HASH_TAG = b"\x49"
_HASH_TAG_BYTES = 1
_ANY_HASH_BYTES = b"\xff" * 7 + b"\xfe"
_ANY_HASH_FIELD = _HASH_TAG + _ANY_HASH_BYTES
_ANY_HASH = int.from_bytes(_ANY_HASH_BYTES, "little")

_WRITABLE = 0x200  # PyBUF_WRITE
_NOTHING = np.empty(0, np.uint8)

_new = ctypes.pythonapi.PyBytes_FromStringAndSize
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
_address = ctypes.pythonapi.PyBytes_AsString
_address.restype, _address.argtypes = ctypes.c_void_p, (ctypes.py_object,)
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype, _view.argtypes = (
    ctypes.py_object,
    (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int),
)


def message_frame(response: pb.ReadBatchesResponse) -> bytes:
    """Return the bytes of a message without a payload."""
    return response.SerializeToString()


def payload_message(payload: bytes) -> bytes:
    """Return a message without an event, which a transport may give a meaning."""
    return _tagged(len(payload)) + payload


class Parts:
    """The target of a payload in several messages.

    Attributes:
        parts: Memory for its bytes, in order; it does not keep the messages alive.
        hash_to: Memory for the payload's hash, ``(8,) uint8``.
    """

    __slots__ = ("hash_to", "parts")

    def __init__(self) -> None:
        self.parts: list[NDArray[np.uint8]] = []
        self.hash_to = np.empty(0, np.uint8)


# A tuple, because a class would double the number of Python calls for each batch.
Target: TypeAlias = tuple[bytes, int, int, int, Parts | None]
"""The target of a payload: the bytes before it, its address and length, and the address for its
hash, 0 for none; or only its parts, if it is split over several messages."""

Finished: TypeAlias = tuple[bytes, int]
"""A message, empty if batches are written elsewhere, and how many batches end with it."""


class Places(Protocol):
    """The places of batches whose payloads are not written yet."""

    def add(self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...]) -> None:
        """Add one more batch.

        Args:
            header: The batch's header; only its hash is filled in here.
            buffer_bytes: As in the header; if it equals that of the batch before, the same object.
        """

    def find(self) -> list[Target]:
        """Return the target of each batch; call it once, when all are added."""

    def finish(self) -> list[Finished]:
        """Return the messages in order; call it once, when all payloads are written."""


class WirePlaces:
    """Places in the messages of a call.

    Args:
        max_chunk_bytes: The largest payload of one message; larger ones are split.
        group_bytes: The largest message with several batches; 0 if there may be none.
    """

    def __init__(self, max_chunk_bytes: int, *, group_bytes: int = 0) -> None:
        self._max_chunk_bytes = max_chunk_bytes
        self._group_bytes = group_bytes
        # The bytes before each payload of the current message, and the payload's size.
        self._open: list[tuple[bytes, int]] = []
        self._open_bytes = 0
        self._targets: list[Target] = []
        self._finished: list[Finished] = []

    def add(self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...]) -> None:
        """Add one more batch; its header is complete except for the hash."""
        del buffer_bytes
        header.payload_xxh3 = _ANY_HASH
        body, size = header.SerializeToString(), header.payload_bytes
        if self._group_bytes and size <= self._max_chunk_bytes:
            if self._hold(body, size):
                return
            if self._open:
                self._close()
                if self._hold(body, size):
                    return
        if self._open:
            self._close()
        if size > self._max_chunk_bytes:
            self._part(body, size)
            return
        tail = _tagged(size) if size else b""
        head = _head_of(body, len(tail)) + tail
        self._open.append((head, size))
        self._open_bytes = len(head) + size
        self._close()

    def find(self) -> list[Target]:
        """Return the target of each batch."""
        if self._open:
            self._close()
        return self._targets

    def finish(self) -> list[Finished]:
        """Return the messages, when all payloads are written."""
        return self._finished

    def _hold(self, body: bytes, size: int) -> bool:
        """Add a batch to the current message; return whether there was room."""
        start = self._open_bytes + _PREFIX_BYTES
        tail = _tagged(size)
        head = _head_of(body, start % _ALIGNMENT + len(tail)) + tail
        response_bytes = len(head) + size
        if start + response_bytes > self._group_bytes:
            return False
        self._open.append((_prefix(response_bytes) + head, size))
        self._open_bytes = start + response_bytes
        return True

    def _close(self) -> None:
        """Make the current message."""
        message, address = _raw_bytes(self._open_bytes)
        self._finished.append((message, len(self._open)))
        for head, size in self._open:
            # A hash of 0 takes the same bytes here, although protobuf would omit it.
            hash_at = address + head.index(_ANY_HASH_FIELD) + _HASH_TAG_BYTES
            address += len(head)
            self._targets.append((head, address, size, hash_at, None))
            address += size
        self._open, self._open_bytes = [], 0

    def _part(self, body: bytes, size: int) -> None:
        """Make the messages of a batch that is split."""
        target = Parts()
        head = _head_of(body, 0)
        for start in range(0, size, self._max_chunk_bytes):
            length = min(self._max_chunk_bytes, size - start)
            if start:
                chunk = pb.Chunk(payload_offset=start)
                head = pb.ReadBatchesResponse(chunk=chunk).SerializeToString()
            tagged = head + _tagged(length)
            message, address = _raw_bytes(len(tagged) + length)
            array = writable(address, len(tagged) + length)
            array[: len(tagged)] = memoryview(tagged)
            if not start:
                hash_at = head.index(_ANY_HASH_FIELD) + _HASH_TAG_BYTES
                target.hash_to = array[hash_at : hash_at + len(_ANY_HASH_BYTES)]
            target.parts.append(array[len(tagged) :])
            self._finished.append((message, int(start + length == size)))
        self._targets.append((b"", 0, size, 0, target))


class ClientGoneError(Exception):
    """The client is gone, so there is nobody to report an error to."""


class Outlet(Protocol):
    """Takes the batches of one stream; only the thread that makes them calls it, except `wake`."""

    def wait(self) -> None:
        """Wait until there is room for a batch, or until `wake` is called.

        Raises:
            ClientGoneError: The client is gone.
        """

    def room(self, most: int) -> int:
        """Return how many batches to make together, >= 1; call it after `wait`."""

    def has_room(self) -> bool:
        """Return whether there is room for one more batch without waiting."""

    def places(self) -> Places:
        """Return places for one or more batches."""

    def announce(self) -> None:
        """Tell the client about the next finished batch, before its messages are sent.

        Raises:
            ClientGoneError: The client is gone.
        """

    def flush(self) -> None:
        """Send all announcements; call it before a wait.

        Raises:
            ClientGoneError: The client is gone.
        """

    def wake(self) -> None:
        """End `wait`; any thread may call this."""


class WireOutlet:
    """Sends batches in the messages of a call, which has its own flow control.

    Args:
        max_chunk_bytes: The largest payload of one message.
        group_bytes: The largest message with several batches; 0 if there may be none.
    """

    def __init__(self, max_chunk_bytes: int, *, group_bytes: int = 0) -> None:
        self._max_chunk_bytes = max_chunk_bytes
        self._group_bytes = group_bytes

    def wait(self) -> None:
        """Return at once."""

    def room(self, most: int) -> int:
        """Return ``most``."""
        return most

    def has_room(self) -> bool:
        """Return True."""
        return True

    def places(self) -> Places:
        """Return places for one or more batches."""
        return WirePlaces(self._max_chunk_bytes, group_bytes=self._group_bytes)

    def announce(self) -> None:
        """Do nothing, because messages need no announcement."""

    def flush(self) -> None:
        """Do nothing."""

    def wake(self) -> None:
        """Do nothing, because `wait` never waits."""


def writable(address: int, size: int) -> NDArray[np.uint8]:
    """Return a writable view of memory, ``(size,) uint8``, which does not keep it alive."""
    return np.frombuffer(_view(address, size, _WRITABLE), np.uint8) if size else _NOTHING


def _raw_bytes(size: int) -> tuple[bytes, int]:
    """Return new, uninitialised bytes and the address of the first one.

    gRPC takes messages only as `bytes`, so a batch that was gathered elsewhere would be copied once
    more. Python's C API lets the creator of a `bytes` object write to it as long as nobody else has
    it: see ``PyBytes_FromStringAndSize`` with NULL.

    Args:
        size: The number of bytes, >= 2, because Python shares shorter objects.
    """
    assert size > 1
    fresh: bytes = _new(None, size)
    return fresh, _address(fresh)


def _tagged(payload_bytes: int) -> bytes:
    """Return the tag and length that precede a payload."""
    return _TAG + _varint(payload_bytes)


def _head_of(body: bytes, between_bytes: int) -> bytes:
    """Return what `message_frame` would return for a response with a batch but no payload.

    Args:
        body: The encoded header of the batch, without padding.
        between_bytes: See `_around`.
    """
    before, padding = _around(len(body), between_bytes)
    return before + body + padding


# The headers of a stream have few lengths.
@functools.lru_cache(maxsize=4096)
def _around(body_bytes: int, between_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes before an encoded header, and the padding field at its end.

    Args:
        body_bytes: Length of the header without padding.
        between_bytes: Bytes before the response in gRPC's message, and between the header and the
            payload, which is to start at a multiple of 64 bytes; 0 for no padding.
    """
    padded = body_bytes
    if between_bytes:
        # The length prefix takes as many bytes as without padding, or one more.
        for length_bytes in itertools.count(len(_varint(body_bytes))):
            missing = -(len(_BATCH_TAG) + length_bytes + body_bytes + between_bytes) % _ALIGNMENT
            padded = body_bytes + missing
            # One byte is too short for a field, and protobuf would omit a field of two.
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
    """Return the bytes before a response in a group.

    The length always takes the same number of bytes, so that the place of the response is known
    before its length. protobuf accepts numbers that are encoded in more bytes than needed.
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
    # Fast, because every batch has some; most take one to three bytes.
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
