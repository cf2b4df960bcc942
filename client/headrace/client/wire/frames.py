"""Find the parts of an encoded message, and use its memory, without a copy of its payload.

protobuf would copy a payload twice, into its message and out of it. Servers send the event first
and the payload last, so two tags and two lengths say where each lies. A message in any other form
goes through protobuf once, which rewrites it in this form; a message that holds several must have
this form.

gRPC makes a `bytes` object for each message and passes it to the reader of the call. There is no
other reference, so its memory may belong to the batch in it, and be written to. NumPy can take over
such bytes, keep them alive and make them writable: it does so when it unpickles arrays.

gRPC allocates memory from the C library several times for each message. By default that library
returns freed memory to the system before the next message arrives, unless the process has freed
larger blocks before.

Source: the wire format of protobuf, https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from headrace.errors import StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb

_FIELDS = pb.ReadBatchesResponse.DESCRIPTOR.fields_by_name
_LENGTH_DELIMITED = 2
_SEVEN_BITS, _MORE = 0x7F, 0x80
_LONGEST_NUMBER = 5
"""Bytes of a length below 32 GiB."""

ALIGNMENT = 16
"""Bytes; the memory of a message starts at a multiple of this, which is enough for any column:
CPython aligns objects to it, and the content of a `bytes` starts 32 bytes into the object."""

_PICKLE_VERSION = 1
_BYTE = np.dtype(np.uint8)
_KEPT_BYTES = 8 << 20
"""Twice the largest message that gRPC's default limit allows."""


class MessageFrame(NamedTuple):
    """The parts of one message.

    Attributes:
        message: The message, encoded.
        kind: Which event it is, one of the constants of this module.
        start: Where the encoded event starts in the message.
        end: Where the event ends.
        payload: Where the payload starts.
        stop: Where the payload ends: with the message, or before the next message in it.
    """

    message: bytes
    kind: int
    start: int
    end: int
    payload: int
    stop: int

    @property
    def event(self) -> bytes:
        """The encoded event."""
        return self.message[self.start : self.end]


def read_frames(message: bytes) -> Iterator[MessageFrame]:
    """Yield the parts of a message, or of the messages that it holds, in their order.

    Raises:
        StreamCorruptError: See `read_frame`; messages yielded before that are valid.
    """
    if not message or message[0] != _MESSAGES:
        yield read_frame(message)
        return
    total, at = len(message), 0
    while at < total:
        size, start = _number(message, at + 1)
        stop = start + size
        if message[at] != _MESSAGES or not size or stop > total:
            raise StreamCorruptError(
                f"a message of {total} bytes that contains several is damaged at byte {at}"
            )
        frame = _regular(message, start, stop)
        yield read_frame(message[start:stop]) if frame is None else frame
        at = stop


def read_frame(message: bytes) -> MessageFrame:
    """Return the parts of an encoded `ReadBatchesResponse`, or `GetBatchResponse`.

    Raises:
        StreamCorruptError: It is not such a message, or holds several.
    """
    frame = _regular(message, 0, len(message))
    if frame is None:
        written = _rewritten(message)
        frame = _regular(written, 0, len(written))
    if frame is None:
        raise StreamCorruptError(
            "a message contains no event that this client knows: update the client"
        )
    return frame


def read_head(head: bytes, payload_bytes: int) -> MessageFrame:
    """Return the parts of an encoded message, given all of it before its payload.

    Raises:
        StreamCorruptError: It is not such a message, or has a payload of another size.
    """
    if head and head[0] in _KINDS:
        size, start = _number(head, 1)
        end = start + size
        if head[end : end + 2] == _PAYLOAD_TAG:
            size, payload = _number(head, end + 2)
            if payload == len(head) and size == payload_bytes:
                return MessageFrame(head, head[0], start, end, payload, payload + size)
    raise StreamCorruptError(
        f"{len(head)} bytes that should begin a message with {payload_bytes} payload bytes do not"
    )


def payload_alone(message: bytes) -> memoryview | None:
    """Return the payload of a message without an event, which a transport gives a meaning.

    Returns:
        A view of the message, or None if it begins with an event.

    Raises:
        StreamCorruptError: There is more than a payload.
    """
    if message[: len(_PAYLOAD_TAG)] != _PAYLOAD_TAG:
        return None
    size, start = _number(message, len(_PAYLOAD_TAG))
    if start + size != len(message):
        raise StreamCorruptError(
            f"a message of {len(message)} bytes without an event is not a payload alone"
        )
    return memoryview(message)[start:]


def read_heartbeat(frame: MessageFrame) -> pb.Heartbeat:
    """Return a heartbeat.

    Raises:
        StreamCorruptError: It is damaged.
    """
    try:
        return pb.Heartbeat.FromString(frame.event)
    except DecodeError as error:
        raise StreamCorruptError(f"a heartbeat cannot be read: {error}") from error


def _regular(message: bytes, at: int, stop: int) -> MessageFrame | None:
    """Return the parts if there are an event, optionally a payload, and nothing else."""
    if at == stop or (kind := message[at]) not in _KINDS:
        return None
    size, start = _number(message, at + 1)
    payload = end = start + size
    if end != stop:
        if end > stop or message[end : end + 2] != _PAYLOAD_TAG:
            return None
        size, payload = _number(message, end + 2)
        if payload + size != stop:
            return None
    # This takes a third of the time of the class's own `__new__`.
    return tuple.__new__(MessageFrame, (message, kind, start, end, payload, stop))


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place and where it ends; past the message if it is cut off."""
    value = shift = 0
    for byte in message[at : at + _LONGEST_NUMBER]:
        at += 1
        if byte < _MORE:
            return value | byte << shift, at
        value |= (byte & _SEVEN_BITS) << shift
        shift += 7
    return 0, len(message) + 1


def _rewritten(message: bytes) -> bytes:
    """Return the same message in the form of our servers."""
    try:
        parsed = pb.ReadBatchesResponse.FromString(message)
    except DecodeError as error:
        raise StreamCorruptError(
            f"a message of {len(message)} bytes is not a ReadBatchesResponse: {error}"
        ) from error
    parsed.DiscardUnknownFields()
    return parsed.SerializeToString()


def _tag(name: str) -> bytes:
    value, tag = _FIELDS[name].number << 3 | _LENGTH_DELIMITED, bytearray()
    while value > _SEVEN_BITS:
        tag.append(value & _SEVEN_BITS | _MORE)
        value >>= 7
    return bytes([*tag, value])


_PAYLOAD_TAG = _tag("payload")
_MESSAGES = _tag("messages")[0]

START, BATCH, CHUNK, EPOCH_END, HEARTBEAT = (
    _tag(name)[0] for name in ("start", "batch", "chunk", "epoch_end", "heartbeat")
)
"""Events by their tags, which have one byte since their numbers are below 16."""

_KINDS = {
    START: "start",
    BATCH: "batch",
    CHUNK: "chunk",
    EPOCH_END: "epoch_end",
    HEARTBEAT: "heartbeat",
}


def kind_name(kind: int) -> str:
    """Return the protocol's name of an event, for messages."""
    return _KINDS[kind]


def memory_of(message: bytes) -> NDArray[np.uint8]:
    """Return the memory of a message, ``(size,) uint8``, writable.

    It exists as long as a view of it does. NumPy copies messages of up to 1000 bytes.

    Args:
        message: There must be no other reference to it, and the caller must not read it where the
            array may be written to.

    Source: ``ndarray.__setstate__``, https://numpy.org/doc/stable/reference/generated.
    """
    memory = np.empty(0, _BYTE)
    memory.__setstate__((_PICKLE_VERSION, (len(message),), _BYTE, False, message))  # type: ignore[arg-type] # a plain bool is what NumPy's own pickles have
    return memory


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library of this process keep freed memory of messages for later messages.

    It returns the top of a heap to the system once twice the largest block ever freed is free
    there, up to 64 MiB, and then takes it again page by page: 3000 page faults for a batch of 16
    MiB, two thirds of the kernel's time for it. After this call it keeps twice `_KEPT_BYTES`.
    Source: glibc's mallopt(3), M_MMAP_THRESHOLD; with another C library this does nothing.
    """
    # The system provides zeros without touching memory, so this takes none.
    bytes(_KEPT_BYTES)
