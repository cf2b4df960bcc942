"""Write the messages of a stream as bytes.

protobuf would copy a payload twice on its way into a message and out again. The payload is the
last field, so a message is its head, serialised as usual, followed by the field's tag, length
and bytes. The head's length is known before the payload is, so the payload is written straight
into the message: no copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.server._fresh import fresh_bytes
from headrace.server._payload import PayloadLayout
from headrace.v1 import shard_service_pb2 as pb

_PAYLOAD_FIELD = 1000
_LENGTH_DELIMITED = 2
_VARINT_BITS = 7
# Stands for the payload's hash until that is known; any but 0 takes as many bytes.
_ANY_HASH = 1


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
        self._head = self._add(pb.ReadBatchesResponse(batch=header), 0, layout.size)
        for begin in range(max_chunk_bytes, layout.size, max_chunk_bytes):
            chunk = pb.Chunk(payload_offset=begin)
            self._add(pb.ReadBatchesResponse(chunk=chunk), begin, layout.size)

    def pieces(self, begin: int, end: int) -> Sequence[NDArray[np.uint8]]:
        """Return where the payload's bytes ``[begin, end)`` go, one array for each message."""
        if end <= self._chunk_bytes:
            return (self._parts[0][begin:end],)
        chunk, pieces = self._chunk_bytes, []
        for index in range(begin // chunk, -(-end // chunk)):
            first = index * chunk
            pieces.append(self._parts[index][max(0, begin - first) : end - first])
        return pieces

    def finish(self) -> list[bytes]:
        """Return the messages, when all of the payload is written; call it once, last."""
        digest = xxhash.xxh3_64()
        for part in self._parts:
            digest.update(part.data)
        self._header.payload_xxh3 = digest.intdigest()
        self._parts.clear()
        head = pb.ReadBatchesResponse(batch=self._header).SerializeToString()
        if len(head) == self._head.size:
            self._head[:] = np.frombuffer(head, np.uint8)
        else:
            # A hash of 0 takes no space.
            self._messages[0] = head + self._messages[0][self._head.size :]
        del self._head
        return self._messages

    def _add(self, response: pb.ReadBatchesResponse, begin: int, size: int) -> NDArray[np.uint8]:
        """Make the message that holds the payload from ``begin`` on; return its head."""
        head = response.SerializeToString()
        length = min(self._chunk_bytes, size - begin)
        tagged = head + _TAG + _varint(length) if length else head
        # The result must be `bytes`: for anything else grpcio's thread raises and the call never
        # ends.
        message, array = fresh_bytes(len(tagged) + length)
        array[: len(tagged)] = np.frombuffer(tagged, np.uint8)
        self._messages.append(message)
        self._parts.append(array[len(tagged) :])
        return array[: len(head)]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 1 << _VARINT_BITS:
        out.append(value & 0x7F | 0x80)
        value >>= _VARINT_BITS
    out.append(value)
    return bytes(out)


_TAG = _varint(_PAYLOAD_FIELD << 3 | _LENGTH_DELIMITED)
