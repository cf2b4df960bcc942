"""The parts of a message are found where protobuf finds them, or the message is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.wire.frames import (
    BATCH,
    CHUNK,
    HEARTBEAT,
    kind_name,
    read_frame,
    read_frames,
    read_heartbeat,
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
    assert message.payload == frame.message[frame.payload : frame.stop]


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

    assert (HEARTBEAT, 5000) == (read_frame(beat).kind, read_heartbeat(read_frame(beat)).waiting_ms)
    assert HEARTBEAT != read_frame(chunk).kind


@given(noise=st.binary(max_size=64))
def test_noise_is_refused_or_harmless(noise: bytes) -> None:
    """No bytes do anything but come out as parts within the message, or as an error of ours."""
    try:
        frame = read_frame(noise)
    except StreamCorruptError:
        return
    assert 0 < frame.start <= frame.end <= frame.payload <= len(frame.message)


@given(
    messages=st.lists(st.tuples(_EVENTS, st.integers(0, 300)), min_size=1, max_size=5),
    length_bytes=st.integers(1, 5),
)
def test_messages_come_out_of_the_one_that_holds_them(
    messages: list[tuple[pb.ReadBatchesResponse, int]], length_bytes: int
) -> None:
    """In their order, with all their parts, however long their lengths are written."""
    for message, payload in messages:
        message.payload = bytes(payload)
    alone = [read_frame(message.SerializeToString()) for message, _ in messages]

    found = list(read_frames(_group([each.message for each in alone], length_bytes)))

    assert [(each.kind, each.event) for each in alone] == [
        (each.kind, each.event) for each in found
    ]
    assert [each.message[each.payload : each.stop] for each in alone] == [
        each.message[each.payload : each.stop] for each in found
    ]


def _group(messages: list[bytes], length_bytes: int = 1) -> bytes:
    """Write lengths with so many bytes at least, as protobuf allows."""
    group = b""
    for message in messages:
        size, length = len(message), bytearray()
        while size >= 1 << 7 or len(length) < length_bytes - 1:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        group += b"\x3a" + bytes([*length, size]) + message
    assert messages == [
        each.SerializeToString() for each in pb.ReadBatchesResponse.FromString(group).messages
    ]
    return group


def _damaged(whole: bytes) -> dict[str, bytes]:
    other = pb.ReadBatchesResponse(heartbeat=pb.Heartbeat()).SerializeToString()
    return {
        "1 cut short": whole[:-1],
        "2 cut behind a tag": whole + b"\x3a",
        "3 cut in a length": whole + b"\x3a\x85",
        "4 a length past the end": whole + b"\x3a\x7f" + other,
        "5 an empty message": whole + b"\x3a\x00",
        "6 something else between": whole + other,
        "7 a length without end": whole + b"\x3a" + b"\xff" * 12,
        "8 a group in it": whole + b"\x3a" + bytes([len(whole)]) + whole,
        "9 no event in it": whole + b"\x3a\x02\xf8\x3e",
    }


@pytest.mark.parametrize("number", range(1, 10))
def test_damaged_groups_are_refused_behind_what_is_whole(number: int) -> None:
    """Of a hostile message no more comes out than what came before the damage."""
    beat = pb.ReadBatchesResponse(heartbeat=pb.Heartbeat(waiting_ms=3)).SerializeToString()
    (damaged,) = (
        made for name, made in _damaged(_group([beat])).items() if name.startswith(str(number))
    )
    found: list[int] = []

    with pytest.raises(StreamCorruptError):
        found.extend(read_heartbeat(frame).waiting_ms for frame in read_frames(damaged))

    assert ([] if number == 1 else [3]) == found


@given(noise=st.binary(max_size=64))
def test_noise_in_a_group_is_refused_or_harmless(noise: bytes) -> None:
    """As in a message of its own."""
    try:
        frames = list(read_frames(b"\x3a" + noise))
    except StreamCorruptError:
        return
    for frame in frames:
        assert 0 < frame.start <= frame.end <= frame.payload <= frame.stop <= len(frame.message)


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
