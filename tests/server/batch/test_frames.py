"""Tests of frames: bytes that protobuf itself would have written."""

from __future__ import annotations

import itertools

import numpy as np
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.payload import PayloadLayout
from headrace.server.batch.frames import BatchFrames
from headrace.v1 import shard_service_pb2 as pb


@given(
    size=st.integers(0, 70_000),
    limit=st.sampled_from([1, 127, 128, 1000, 16_384, 65_536]),
    cuts=st.lists(st.integers(0, 70_000), max_size=5),
)
@example(size=2_500_000, limit=1 << 20, cuts=[10, 700_000])  # hashed piece by piece
def test_frames_are_what_protobuf_writes(size: int, limit: int, cuts: list[int]) -> None:
    """Written in any pieces, each message is what protobuf writes; payloads join to the whole."""
    size = min(size, 300 * limit)
    content = np.resize(np.arange(256, dtype=np.uint8), size)
    layout = PayloadLayout((size,), (0,), size)
    frames = BatchFrames(pb.BatchHeader(epoch=3), layout, max_chunk_bytes=limit)

    edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
    for begin, end in itertools.pairwise(edges):
        at = begin
        for piece in frames.pieces(begin, end):
            piece[:] = content[at : at + piece.size]
            at += piece.size
        assert at == end
    found = frames.finish()

    messages = [pb.ReadBatchesResponse.FromString(frame) for frame in found]
    assert [bytes] * len(messages) == [type(frame) for frame in found]
    assert found == [message.SerializeToString() for message in messages]
    assert content.tobytes() == b"".join(message.payload for message in messages)
    assert all(len(message.payload) <= limit for message in messages)
    header = messages[0].batch
    assert (3, size, [size], xxhash.xxh3_64_intdigest(content.tobytes())) == (
        header.epoch,
        header.payload_bytes,
        list(header.buffer_bytes),
        header.payload_xxh3,
    )
    if 0 < size <= limit:
        assert 0 == (len(found[0]) - size) % 64
    offsets = [message.chunk.payload_offset for message in messages[1:]]
    assert list(range(limit, size, limit)) == offsets


@given(token_bytes=st.integers(0, 400), size=st.integers(1, 300))
def test_a_payload_in_one_message_begins_at_a_multiple_of_64(token_bytes: int, size: int) -> None:
    """Whatever the length of the rest of the header; the padding is below twice that."""
    header = pb.BatchHeader(resume_token=b"t" * token_bytes)
    frames = BatchFrames(header, PayloadLayout((size,), (0,), size), max_chunk_bytes=1024)
    for piece in frames.pieces(0, size):
        piece[:] = 7

    (found,) = frames.finish()

    message = pb.ReadBatchesResponse.FromString(found)
    assert (bytes([7] * size), 0) == (message.payload, (len(found) - size) % 64)
    assert found == message.SerializeToString()
    assert len(message.batch.head_padding) < 128
    assert not any(message.batch.head_padding)
