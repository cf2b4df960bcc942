"""Tests of frames: bytes that protobuf itself would have written."""

from __future__ import annotations

import itertools

import numpy as np
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.server.batch.payload_out import payload_out
from headrace.server.batch.targets import WirePlaces
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
    places = WirePlaces(limit)
    places.add(pb.BatchHeader(epoch=3, buffer_bytes=[size], payload_bytes=size), (size,))
    (target,) = places.find()
    out = payload_out(target)
    edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
    for start, end in itertools.pairwise(edges):
        if start % 2:
            out.put(start, content[start:end])
        else:
            out.take(start, end - start)[:] = content[start:end]
    out.end()
    finished = places.finish()
    found = [message for message, _ in finished]

    assert [0] * (len(finished) - 1) + [1] == [batch_count for _, batch_count in finished]
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


@given(
    before=st.integers(0, 300),
    count=st.integers(1, 40),
    row_bytes=st.integers(1, 200),
    after=st.integers(0, 300),
    limit=st.integers(16, 500),
    data=st.data(),
)
def test_rows_may_be_written_in_any_order(  # noqa: PLR0917 - one for each number
    before: int, count: int, row_bytes: int, after: int, limit: int, data: st.DataObject
) -> None:
    """Between other bytes, however many messages a row lies in: the payload is the same."""
    size = before + count * row_bytes + after
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    places = WirePlaces(limit)
    places.add(pb.BatchHeader(payload_bytes=size), (size,))
    (target,) = places.find()
    out = payload_out(target)
    out.put(0, content[:before])
    rows = out.take_rows(before, count, row_bytes)
    for row in data.draw(st.permutations(range(count))):
        start = before + row * row_bytes
        rows[row][:] = content[start : start + row_bytes]
    out.put(size - after, content[size - after :])
    out.end()

    messages = [pb.ReadBatchesResponse.FromString(frame) for frame, _ in places.finish()]
    assert content.tobytes() == b"".join(message.payload for message in messages)
    assert xxhash.xxh3_64_intdigest(content.tobytes()) == messages[0].batch.payload_xxh3


@given(token_bytes=st.integers(0, 400), size=st.integers(1, 300))
def test_a_payload_in_one_message_begins_at_a_multiple_of_64(token_bytes: int, size: int) -> None:
    """Whatever the length of the rest of the header; the padding is below twice that."""
    header = pb.BatchHeader(resume_token=b"t" * token_bytes, payload_bytes=size)
    places = WirePlaces(1024)
    places.add(header, (size,))
    (target,) = places.find()
    out = payload_out(target)
    out.put(0, np.full(size, 7, np.uint8))
    out.end()
    ((found, _),) = places.finish()

    message = pb.ReadBatchesResponse.FromString(found)
    assert (bytes([7] * size), 0) == (message.payload, (len(found) - size) % 64)
    assert found == message.SerializeToString()
    assert len(message.batch.head_padding) < 128
    assert not any(message.batch.head_padding)
