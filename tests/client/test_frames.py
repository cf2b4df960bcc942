"""The parts of a message are found where protobuf finds them, or the message is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client._frames import (
    BATCH,
    CHUNK,
    HEARTBEAT,
    heartbeat_ms,
    kind_name,
    read_frame,
)
from headrace.errors import StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb

_EVENTS = st.one_of(
    st.builds(
        lambda token, sizes: pb.ReadBatchesResponse(
            batch=pb.BatchHeader(resume_token=token, buffer_bytes=sizes)
        ),
        st.binary(max_size=300),
        st.lists(st.integers(0, 2**40), max_size=40),
    ),
    st.builds(
        lambda offset: pb.ReadBatchesResponse(chunk=pb.Chunk(payload_offset=offset)),
        st.integers(0, 2**40),
    ),
    st.builds(
        lambda epoch: pb.ReadBatchesResponse(epoch_end=pb.EpochEnd(epoch=epoch)),
        st.integers(0, 2**40),
    ),
)


@given(message=_EVENTS, payload=st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 2_097_152]))
def test_parts_are_those_that_protobuf_finds(message: pb.ReadBatchesResponse, payload: int) -> None:
    """Event and payload of any size come out as they went in."""
    message.payload = bytes(range(256)) * (payload // 256) + bytes(payload % 256)
    name = message.WhichOneof("event")
    assert name is not None

    frame = read_frame(message.SerializeToString())

    assert (name, getattr(message, name).SerializeToString()) == (
        kind_name(frame.kind),
        frame.event,
    )
    assert message.payload == frame.message[frame.payload :]


def test_a_message_of_another_make_is_read_all_the_same() -> None:
    """The payload may come first, a field may be unknown, an event may come in two parts."""
    first = pb.ReadBatchesResponse(chunk=pb.Chunk(payload_offset=7)).SerializeToString()
    payload = pb.ReadBatchesResponse(payload=b"abc").SerializeToString()
    unknown = b"\xfa\x3e\x02hi"  # field 1007
    halves = [
        pb.ReadBatchesResponse(batch=pb.BatchHeader(epoch=3)).SerializeToString(),
        pb.ReadBatchesResponse(batch=pb.BatchHeader(step=5)).SerializeToString(),
    ]

    for made in (payload + first, first + unknown + payload, first + payload + unknown):
        frame = read_frame(made)
        assert (CHUNK, b"abc") == (frame.kind, frame.message[frame.payload :])
        assert 7 == pb.Chunk.FromString(frame.event).payload_offset
    both = read_frame(b"".join(halves) + payload)
    header = pb.BatchHeader.FromString(both.event)
    assert (BATCH, 3, 5) == (both.kind, header.epoch, header.step)


def test_only_a_heartbeat_is_one() -> None:
    """Its milliseconds are told."""
    beat = pb.ReadBatchesResponse(heartbeat=pb.Heartbeat(waiting_ms=5000)).SerializeToString()
    chunk = pb.ReadBatchesResponse(chunk=pb.Chunk()).SerializeToString()

    assert (HEARTBEAT, 5000) == (read_frame(beat).kind, heartbeat_ms(beat))
    assert HEARTBEAT != read_frame(chunk).kind


@given(noise=st.binary(max_size=64))
def test_noise_is_refused_or_harmless(noise: bytes) -> None:
    """No bytes do anything but come out as parts within the message, or as an error of ours."""
    try:
        frame = read_frame(noise)
    except StreamCorruptError:
        return
    assert 0 < frame.begin <= frame.end <= frame.payload <= len(frame.message)


@given(cut=st.integers(1, 400))
def test_a_message_cut_short_is_refused(cut: int) -> None:
    """What is missing at the end is noticed, wherever the cut is."""
    header = pb.BatchHeader(resume_token=bytes(200), payload_bytes=300)
    whole = pb.ReadBatchesResponse(batch=header, payload=bytes(300)).SerializeToString()
    edge = len(pb.ReadBatchesResponse(batch=header).SerializeToString())
    kept = len(whole) - cut
    if kept == edge:
        return

    with pytest.raises(StreamCorruptError):
        read_frame(whole[:kept])
