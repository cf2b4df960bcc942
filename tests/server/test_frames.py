"""Tests of frames: bytes that protobuf itself would have written."""

from __future__ import annotations

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.server._assemble import Payload
from headrace.server._frames import batch_frames
from headrace.v1 import shard_service_pb2 as pb


@given(size=st.integers(0, 70_000), limit=st.sampled_from([1, 127, 128, 16_384, 65_536]))
def test_frames_are_what_protobuf_writes(size: int, limit: int) -> None:
    """Parsed and written again, each message gives the same bytes; payloads join to the whole."""
    size = min(size, 300 * limit)
    content = bytes(range(256)) * (size // 256 + 1)
    payload = Payload((size,), memoryview(content)[:size], xxhash.xxh3_64_intdigest(content[:size]))

    frames = list(batch_frames(pb.BatchHeader(epoch=3), payload, max_chunk_bytes=limit))

    messages = [pb.ReadBatchesResponse.FromString(frame) for frame in frames]
    assert frames == [message.SerializeToString() for message in messages]
    assert content[:size] == b"".join(message.payload for message in messages)
    assert all(len(message.payload) <= limit for message in messages)
    header = messages[0].batch
    assert (3, size, [size], payload.xxh3) == (
        header.epoch,
        header.payload_bytes,
        list(header.buffer_bytes),
        header.payload_xxh3,
    )
    offsets = [message.chunk.payload_offset for message in messages[1:]]
    assert list(range(limit, size, limit)) == offsets


def test_frames_are_bytes() -> None:
    """Anything but `bytes` would leave a call that never ends."""
    payload = Payload((5,), memoryview(bytearray(b"hello")), 1)

    assert [bytes] == [type(f) for f in batch_frames(pb.BatchHeader(), payload, max_chunk_bytes=9)]
