"""Read what an Arrow message states about its buffers, before Arrow allocates memory for them.

A compressed buffer states its decompressed length in eight bytes, and Arrow allocates that much. So
these lengths are added up first, and a few kilobytes cannot make it allocate a terabyte.

Source: Message.fbs, File.fbs and the page "Serialization and Interprocess Communication" of the
Arrow format, version 1.5; the layout of tables and vectors is that of FlatBuffers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from operator import add

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_RECORD_BATCH = 3  # in the union MessageHeader
_FILE_END = struct.Struct("<i6s")  # length of the footer, magic
_MAGIC = b"ARROW1"
_PREFIX = struct.Struct("<q")  # before each compressed buffer
_AS_IS = -1  # the prefix of a buffer that is not compressed after all


@dataclass(frozen=True, slots=True)
class MessageSize:
    """The memory that decoding a message takes.

    Attributes:
        decoded_bytes: The decoded bytes of all buffers together.
        buffer_count: Number of buffers.
        is_compressed: Whether the message names a codec.
        states_nulls: Whether the message states nulls in any column or part of one.
    """

    decoded_bytes: int
    buffer_count: int
    is_compressed: bool
    states_nulls: bool


def message_size(message: pa.Message) -> MessageSize:
    """Add up what a record batch states about its buffers.

    Args:
        message: The message as Arrow parsed it; only the prefixes of buffers are read of its body.

    Raises:
        ValueError: It is not a record batch, or a buffer lies outside the body.
    """
    body = memoryview(message.body) if message.body is not None else memoryview(b"")
    try:
        batch = _record_batch(memoryview(message.metadata))
        places, nodes = batch.pairs(2), batch.pairs(1)
        is_compressed = batch.place(3) is not None
    except (struct.error, IndexError) as error:
        raise ValueError(f"its metadata is cut off: {error}") from error
    offsets, lengths = places[::2], places[1::2]
    _check_inside(offsets, lengths, len(body))
    decoded = _stated_bytes(body, offsets, lengths) if is_compressed else sum(lengths)
    return MessageSize(
        decoded, len(lengths), is_compressed=is_compressed, states_nulls=any(nodes[1::2])
    )


def check_plain_file(content: bytes, *, limit_bytes: int) -> None:
    """Refuse an Arrow IPC file that is compressed, or whose buffers overlap to need much memory.

    Args:
        content: The bytes of the file.
        limit_bytes: How much memory its batches may take together.

    Raises:
        ValueError: It is not a plain file of record batches, or takes too much memory.
        pa.ArrowException: Arrow cannot read one of its messages.
    """
    total = 0
    try:
        places = _batch_places(memoryview(content))
    except (struct.error, IndexError) as error:
        raise ValueError(f"the footer of the file is cut off: {error}") from error
    for offset in places:
        if not 0 <= offset < len(content):
            raise ValueError(f"a record batch at byte {offset}, but the file has {len(content)}")
        try:
            message = pa.ipc.read_message(pa.py_buffer(content)[offset:])
        except EOFError as error:  # raised by Arrow for the end-of-stream marker
            raise ValueError(f"no message at byte {offset}: {error}") from error
        size = message_size(message)
        total += size.decoded_bytes
        if size.is_compressed:
            raise ValueError("compressed record batch found, none expected")
    if total > limit_bytes:
        raise ValueError(f"record batches of {total} bytes found, at most {limit_bytes} expected")


_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("pad", "<i4"), ("body", "<i8")])


# Python's integers, because a block has few buffers and one call of NumPy takes longer than all of
# them. They do not overflow either.
_Numbers = tuple[int, ...]


def _record_batch(metadata: memoryview) -> _Table:
    message = _Table(metadata, _offset_at(metadata, 0))
    kind = message.place(1)
    if kind is None or metadata[kind] != _RECORD_BATCH:
        raise ValueError("it is not a record batch")
    return message.table(2)


def _batch_places(content: memoryview) -> list[int]:
    length, magic = _FILE_END.unpack(content[-_FILE_END.size :])
    start = len(content) - _FILE_END.size - length
    if magic != _MAGIC or length <= 0 or start < 0:
        raise ValueError("it does not end as an Arrow file does")
    footer = content[start : len(content) - _FILE_END.size]
    table = _Table(footer, _offset_at(footer, 0))
    if len(table.structs(2, _BLOCK)):
        raise ValueError("dictionaries found, none expected")
    return [int(offset) for offset in table.structs(3, _BLOCK)["offset"]]


def _check_inside(offsets: _Numbers, lengths: _Numbers, body_bytes: int) -> None:
    if not offsets or (
        min(offsets) >= 0 and min(lengths) >= 0 and max(map(add, offsets, lengths)) <= body_bytes
    ):
        return
    for buffer, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        if offset < 0 or length < 0 or offset + length > body_bytes:
            raise ValueError(
                f"buffer {buffer} has {length} bytes at {offset} of a body of {body_bytes} bytes"
            )


def _stated_bytes(body: memoryview, offsets: _Numbers, lengths: _Numbers) -> int:
    total = 0
    for offset, length in zip(offsets, lengths, strict=True):
        if not length:
            continue
        if length < _PREFIX.size:
            raise ValueError(f"a compressed buffer has only {length} bytes")
        [stated] = _PREFIX.unpack_from(body, offset)
        if stated < _AS_IS:
            raise ValueError(f"a compressed buffer states {stated} bytes")
        total += stated if stated != _AS_IS else length - _PREFIX.size
    return total


class _Table:
    """A table of FlatBuffers; an offset outside the bytes raises an error."""

    def __init__(self, content: memoryview, start: int) -> None:
        self._content = content
        self._start = start
        self._fields = start - _read("<i", content, start)
        self._fields_bytes = _read("<H", content, self._fields)

    def place(self, field: int) -> int | None:
        """Return where a field starts, or None if it is absent."""
        entry = 4 + 2 * field
        if entry + 2 > self._fields_bytes:
            return None
        offset = _read("<H", self._content, self._fields + entry)
        return self._start + offset if offset else None

    def table(self, field: int) -> _Table:
        """Return a field that is a table."""
        place = self.place(field)
        if place is None:
            raise ValueError(f"field {field} of its metadata is missing")
        return _Table(self._content, _offset_at(self._content, place))

    def pairs(self, field: int) -> tuple[int, ...]:
        """Return a field that is a vector of pairs of int64, flattened."""
        place = self.place(field)
        if place is None:
            return ()
        start = _offset_at(self._content, place)
        count = _read("<I", self._content, start)
        if count * 16 > len(self._content):  # before a tuple of this length is made
            raise ValueError(f"{count} pairs do not fit in {len(self._content)} bytes")
        return struct.unpack_from(f"<{2 * count}q", self._content, start + 4)

    def structs(self, field: int, kind: np.dtype[np.void]) -> NDArray[np.void]:
        """Return a field that is a vector of structs; empty if it is absent."""
        place = self.place(field)
        if place is None:
            return np.empty(0, kind)
        start = _offset_at(self._content, place)
        count = _read("<I", self._content, start)
        return np.frombuffer(self._content, kind, count, start + 4)


def _offset_at(content: memoryview, place: int) -> int:
    return place + _read("<I", content, place)


def _read(form: str, content: memoryview, place: int) -> int:
    if place < 0:
        raise ValueError(f"an offset points to byte {place}")
    value: int = struct.unpack_from(form, content, place)[0]
    return value
