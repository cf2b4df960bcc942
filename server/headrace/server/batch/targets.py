"""Where batches go: into the messages of a call, or elsewhere through another outlet.

protobuf would copy a payload twice on its way into a message and out again. The payload is the
last field, so a message is its head, serialised as usual, followed by the field's tag, length
and bytes. The head's length is known before the payload is, so the payload is written straight
into the message: no copy.
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
_PREFIX_BYTES = 5  # of a response in one that holds several: a tag, and a length below 256 MiB
_EMPTY_FIELD_BYTES = 2
_ALIGNMENT = 64
# Stands for the payload's hash until that is known; any but 0 takes as many bytes. No other field
# can hold these bytes behind that tag: a number before the hash would have to be above 2**55.
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
    """Return a message without payload as it goes to the wire."""
    return response.SerializeToString()


class Parts:
    """Where a payload of several messages goes.

    Attributes:
        parts: Places for its bytes, one after the other; they do not keep the messages alive.
        hash_to: Takes the payload's hash, ``(8,) uint8``.
    """

    __slots__ = ("hash_to", "parts")

    def __init__(self) -> None:
        self.parts: list[NDArray[np.uint8]] = []
        self.hash_to = np.empty(0, np.uint8)


# Made for each batch: separate classes would double the number of calls.
Whole: TypeAlias = tuple[bytes, int, int, int]
"""Where a batch goes that is in one piece: what precedes its payload, the payload's address and
length, and the address of what takes its hash, 0 for nothing."""

Target: TypeAlias = Whole | Parts

Finished: TypeAlias = tuple[bytes, int]
"""A message, empty where batches lie elsewhere, and how many batches end with it."""


class Places(Protocol):
    """The places of batches whose payloads are yet to be written."""

    def add(self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...]) -> None:
        """Add one more batch.

        Args:
            header: The batch's header; only its hash is filled in here.
            buffer_bytes: As in the header; the same object as for the batch before if it is equal.
        """

    def find(self) -> list[Target]:
        """Return where each batch goes; call it once, when all are added."""

    def finish(self) -> list[Finished]:
        """Return the messages in order; call it once, when all is written."""


class WirePlaces:
    """Places in the messages of a call.

    Args:
        max_chunk_bytes: Greatest payload of one message; greater ones take several.
        group_bytes: Greatest size of a message that holds several batches; 0 where none may.
    """

    def __init__(self, max_chunk_bytes: int, *, group_bytes: int = 0) -> None:
        self._max_chunk_bytes = max_chunk_bytes
        self._group_bytes = group_bytes
        # For the current message: what precedes each payload, and the payload's bytes.
        self._open: list[tuple[bytes, int]] = []
        self._open_bytes = 0
        self._targets: list[Target] = []
        self._finished: list[Finished] = []

    def add(self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...]) -> None:
        """Add one more batch; all of its header but the hash is filled in."""
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
        message, address = _raw_bytes(self._open_bytes)
        self._finished.append((message, len(self._open)))
        for head, size in self._open:
            # A hash of 0 takes as many bytes here, which protobuf would leave out.
            hash_at = address + head.index(_ANY_HASH_FIELD) + _HASH_TAG_BYTES
            address += len(head)
            self._targets.append((head, address, size, hash_at))
            address += size
        self._open, self._open_bytes = [], 0

    def _part(self, body: bytes, size: int) -> None:
        """Make the messages of a batch that takes several."""
        target = Parts()
        head = _head_of(body, 0)
        for begin in range(0, size, self._max_chunk_bytes):
            length = min(self._max_chunk_bytes, size - begin)
            if begin:
                chunk = pb.Chunk(payload_offset=begin)
                head = pb.ReadBatchesResponse(chunk=chunk).SerializeToString()
            tagged = head + _tagged(length)
            message, address = _raw_bytes(len(tagged) + length)
            array = writable(address, len(tagged) + length)
            array[: len(tagged)] = memoryview(tagged)
            if not begin:
                hash_at = head.index(_ANY_HASH_FIELD) + _HASH_TAG_BYTES
                target.hash_to = array[hash_at : hash_at + len(_ANY_HASH_BYTES)]
            target.parts.append(array[len(tagged) :])
            self._finished.append((message, int(begin + length == size)))
        self._targets.append(target)


class ClientGoneError(Exception):
    """Nobody takes the batches any more, so nobody can be told."""


class Outlet(Protocol):
    """Takes the batches of one stream; all but `wake` is for the thread that makes them."""

    def wait(self) -> None:
        """Wait until a batch may be made, or until `wake` is called.

        Raises:
            ClientGoneError: Nobody would take it.
        """

    def room(self, most: int) -> int:
        """Return how many batches to make together, at least one; call it after `wait`."""

    def has_room(self) -> bool:
        """Return whether one more batch may be made without a wait."""

    def places(self) -> Places:
        """Begin one batch or several."""

    def announce(self) -> None:
        """Tell the client of the next batch that is finished, before its messages go out.

        Raises:
            ClientGoneError: The client has gone.
        """

    def flush(self) -> None:
        """Tell the client of all that was announced; call it before a wait.

        Raises:
            ClientGoneError: The client has gone.
        """

    def wake(self) -> None:
        """End a wait, from any thread."""


class WireOutlet:
    """Sends batches in the messages of the call, which has its own flow control.

    Args:
        max_chunk_bytes: Greatest payload of one message.
        group_bytes: Greatest size of a message of several batches; 0 where there may be none.
    """

    def __init__(self, max_chunk_bytes: int, *, group_bytes: int = 0) -> None:
        self._max_chunk_bytes = max_chunk_bytes
        self._group_bytes = group_bytes

    def wait(self) -> None:
        """Have nothing to wait for."""

    def room(self, most: int) -> int:
        """Return that there is room for all."""
        return most

    def has_room(self) -> bool:
        """Return that there is room."""
        return True

    def places(self) -> Places:
        """Begin one batch or several."""
        return WirePlaces(self._max_chunk_bytes, group_bytes=self._group_bytes)

    def announce(self) -> None:
        """Leave it to the messages."""

    def flush(self) -> None:
        """Leave it to the messages."""

    def wake(self) -> None:
        """Have nobody to wake."""


def writable(address: int, size: int) -> NDArray[np.uint8]:
    """Return a way to write memory, ``(size,) uint8``, which does not keep it alive."""
    return np.frombuffer(_view(address, size, _WRITABLE), np.uint8) if size else _NOTHING


def _raw_bytes(size: int) -> tuple[bytes, int]:
    """Return new bytes with whatever their memory held, and the address of the first.

    gRPC takes messages as `bytes` alone, and a batch that was gathered elsewhere would be copied
    once more. Python's C API lets whoever just made a `bytes` object write to it, as long as nobody
    else has it: see ``PyBytes_FromStringAndSize`` with NULL.

    Args:
        size: How many, >= 2: Python keeps shorter ones for all to share.
    """
    assert size > 1
    fresh: bytes = _new(None, size)
    return fresh, _address(fresh)


def _tagged(payload_bytes: int) -> bytes:
    """Return what stands right before a payload."""
    return _TAG + _varint(payload_bytes)


def _head_of(body: bytes, between_bytes: int) -> bytes:
    """Return what `message_frame` would of a response with a batch, without the payload.

    Args:
        body: The batch's header, encoded, without padding.
        between_bytes: See `_around`.
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
