"""What an Arrow message says of its buffers, read before Arrow allocates anything for them.

A compressed buffer states in eight bytes how long it is decompressed, and Arrow allocates what
they say. So the statements are added up first; a few kilobytes cannot ask for a terabyte.

Source: Message.fbs, File.fbs and the page "Serialization and Interprocess Communication" of the
Arrow format, version 1.5; the layout of tables and vectors is that of FlatBuffers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_RECORD_BATCH = 3  # of the union MessageHeader
_FILE_END = struct.Struct("<i6s")  # length of the footer, magic
_MAGIC = b"ARROW1"
_PREFIX_BYTES = 8  # in front of each compressed buffer
_AS_IS = -1  # a prefix that says: not compressed after all


@dataclass(frozen=True, slots=True)
class MessageSize:
    """What decoding a message will hold in memory.

    Attributes:
        decoded_bytes: Of all buffers together.
        buffer_count: Buffers.
        is_compressed: Some codec is named.
    """

    decoded_bytes: int
    buffer_count: int
    is_compressed: bool


def message_size(message: pa.Message) -> MessageSize:
    """Add up what the buffers of a record batch say of themselves.

    Args:
        message: As Arrow parsed it; its body is not looked at but for the prefixes of buffers.

    Raises:
        ValueError: It is no record batch, or a buffer lies outside the body; says which.
    """
    body = memoryview(message.body) if message.body is not None else memoryview(b"")
    try:
        buffers, is_compressed = _buffers(memoryview(message.metadata))
    except (struct.error, IndexError) as error:
        raise ValueError(f"its metadata is cut off: {error}") from error
    _check_inside(buffers, len(body))
    if not is_compressed:
        decoded = int(buffers["length"].sum(dtype=np.float64))
        return MessageSize(decoded, len(buffers), is_compressed=False)
    return MessageSize(_stated_bytes(body, buffers), len(buffers), is_compressed=True)


def check_plain_file(content: bytes, *, limit_bytes: int) -> None:
    """Refuse an Arrow IPC file that is compressed, or whose buffers overlap beyond measure.

    Args:
        content: The file.
        limit_bytes: What its batches may take in memory together.

    Raises:
        ValueError: It is not a plain file of record batches; says why.
        pa.ArrowException: Arrow cannot read one of its messages.
    """
    total = 0
    try:
        places = _batch_places(memoryview(content))
    except (struct.error, IndexError) as error:
        raise ValueError(f"the footer of the file is cut off: {error}") from error
    for offset in places:
        if not 0 <= offset < len(content):
            raise ValueError(f"a record batch at byte {offset} of {len(content)}")
        size = message_size(pa.ipc.read_message(pa.py_buffer(content)[offset:]))
        total += size.decoded_bytes
        if size.is_compressed:
            raise ValueError("a compressed record batch, none wanted")
    if total > limit_bytes:
        raise ValueError(f"record batches of {total} bytes in a file of {len(content)}")


_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])
_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("pad", "<i4"), ("body", "<i8")])


def _buffers(metadata: memoryview) -> tuple[NDArray[np.void], bool]:
    message = _Table(metadata, _offset_at(metadata, 0))
    kind = message.place(1)
    if kind is None or metadata[kind] != _RECORD_BATCH:
        raise ValueError("it is no record batch")
    batch = message.table(2)
    return batch.structs(2, _BUFFER), batch.place(3) is not None


def _batch_places(content: memoryview) -> list[int]:
    length, magic = _FILE_END.unpack(content[-_FILE_END.size :])
    start = len(content) - _FILE_END.size - length
    if magic != _MAGIC or length <= 0 or start < 0:
        raise ValueError("it does not end as an Arrow file does")
    footer = content[start : len(content) - _FILE_END.size]
    table = _Table(footer, _offset_at(footer, 0))
    if len(table.structs(2, _BLOCK)):
        raise ValueError("dictionaries, none wanted")
    return [int(offset) for offset in table.structs(3, _BLOCK)["offset"]]


def _check_inside(buffers: NDArray[np.void], body_bytes: int) -> None:
    offsets, lengths = buffers["offset"], buffers["length"]
    is_bad = (offsets < 0) | (lengths < 0) | (offsets > body_bytes - lengths)
    if is_bad.any():
        worst = int(np.flatnonzero(is_bad)[0])
        raise ValueError(
            f"buffer {worst} has {lengths[worst]} bytes at {offsets[worst]} of a body of "
            f"{body_bytes} bytes"
        )


def _stated_bytes(body: memoryview, buffers: NDArray[np.void]) -> int:
    filled = buffers[buffers["length"] != 0]
    if len(filled) and filled["length"].min() < _PREFIX_BYTES:
        raise ValueError(f"a compressed buffer of {filled['length'].min()} bytes")
    # All prefixes in one step: a loop costs as much as decoding a small block.
    places = filled["offset"][:, np.newaxis] + np.arange(_PREFIX_BYTES)
    stated = np.frombuffer(body, np.uint8)[places].view("<i8")[:, 0]
    if len(stated) and stated.min() < _AS_IS:
        raise ValueError(f"a compressed buffer that states {stated.min()} bytes")
    decoded = np.where(stated == _AS_IS, filled["length"] - _PREFIX_BYTES, stated)
    return int(decoded.sum(dtype=np.float64))  # a sum of int64 may wrap around


class _Table:
    """A table of FlatBuffers; whatever leads out of the bytes raises."""

    def __init__(self, content: memoryview, start: int) -> None:
        self._content = content
        self._start = start
        self._fields = start - _read("<i", content, start)
        self._fields_bytes = _read("<H", content, self._fields)

    def place(self, field: int) -> int | None:
        """Return where a field begins, or nothing where it is left out."""
        entry = 4 + 2 * field
        if entry + 2 > self._fields_bytes:
            return None
        offset = _read("<H", self._content, self._fields + entry)
        return self._start + offset if offset else None

    def table(self, field: int) -> _Table:
        """Return a field that is a table."""
        place = self.place(field)
        if place is None:
            raise ValueError(f"field {field} of its metadata is not there")
        return _Table(self._content, _offset_at(self._content, place))

    def structs(self, field: int, kind: np.dtype[np.void]) -> NDArray[np.void]:
        """Return a field that is a vector of structs; one that is left out has none."""
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
        raise ValueError(f"an offset leads to byte {place}")
    value: int = struct.unpack_from(form, content, place)[0]
    return value
