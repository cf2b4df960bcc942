"""Write the messages of a stream as bytes.

protobuf would copy a payload twice on its way into a message and out again. The payload is the
last field, so a message is its head, serialised as usual, followed by the field's tag, length
and bytes: one copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.server._assemble import Payload
from headrace.v1 import shard_service_pb2 as pb

_PAYLOAD_FIELD = 1000
_LENGTH_DELIMITED = 2
_VARINT_BITS = 7


def message_frame(response: pb.ReadBatchesResponse) -> bytes:
    """Return a message without payload as it goes to the wire."""
    return response.SerializeToString()


def batch_frames(
    header: pb.BatchHeader, payload: Payload, *, max_chunk_bytes: int
) -> Iterator[bytes]:
    """Yield the messages of one batch, each with at most ``max_chunk_bytes`` of payload.

    Args:
        header: The batch; its fields about the payload are filled in here.
        payload: Must not change until the last message was taken.
        max_chunk_bytes: Greatest part of the payload in one message.
    """
    size = len(payload.view)
    header.buffer_bytes.extend(payload.buffer_bytes)
    header.payload_bytes = size
    header.payload_xxh3 = payload.xxh3
    head = pb.ReadBatchesResponse(batch=header).SerializeToString()
    yield _with_payload(head, payload.view[:max_chunk_bytes])
    for begin in range(max_chunk_bytes, size, max_chunk_bytes):
        head = pb.ReadBatchesResponse(chunk=pb.Chunk(payload_offset=begin)).SerializeToString()
        yield _with_payload(head, payload.view[begin : begin + max_chunk_bytes])


def _with_payload(head: bytes, part: memoryview) -> bytes:
    # The result must be `bytes`: for anything else grpcio's thread raises and the call never ends.
    return b"".join((head, _TAG, _varint(len(part)), part)) if part else head


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 1 << _VARINT_BITS:
        out.append(value & 0x7F | 0x80)
        value >>= _VARINT_BITS
    out.append(value)
    return bytes(out)


_TAG = _varint(_PAYLOAD_FIELD << 3 | _LENGTH_DELIMITED)
