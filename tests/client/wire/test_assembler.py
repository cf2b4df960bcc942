"""Messages become whole batches, or an error: never a wrong batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.client.wire.assembler import BatchEvent, EpochEndEvent, StreamAssembler
from headrace.errors import StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb
from support.wire import batch_messages, epoch_messages, start_message, token_at


def _allocate(size: int) -> NDArray[np.uint8]:
    return np.full(size, 255, dtype=np.uint8)


def _started() -> StreamAssembler:
    assembler = StreamAssembler(_allocate)
    assembler.feed(start_message().SerializeToString())
    return assembler


@given(
    rows=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=200),
    chunk_bytes=st.integers(1, 600),
)
def test_a_batch_comes_out_whole_however_it_is_cut(rows: list[int], chunk_bytes: int) -> None:
    """The size of chunks does not show in the batch."""
    expected = np.array(rows, dtype=np.int64)
    assembler = _started()

    events = [
        assembler.feed(message.SerializeToString())
        for message in batch_messages(
            [expected.tobytes()],
            token=token_at(0, 4),
            sample_count=len(rows),
            chunk_bytes=chunk_bytes,
        )
    ]

    assert all(event is None for event in events[:-1])
    assert isinstance(events[-1], BatchEvent)
    assert expected.tolist() == events[-1].columns["x"].values.tolist()


@given(data=st.data())
def test_any_flipped_bit_of_a_payload_is_refused(data: st.DataObject) -> None:
    """The checksum covers every byte of the payload, in whichever message it comes."""
    chunk_bytes = data.draw(st.sampled_from([64, 24]))
    messages = batch_messages(
        [bytes(range(64))], token=token_at(0, 4), sample_count=8, chunk_bytes=chunk_bytes
    )
    byte, bit = divmod(data.draw(st.integers(0, 8 * 64 - 1)), 8)
    message = messages[byte // chunk_bytes]
    damaged = bytearray(message.payload)
    damaged[byte % chunk_bytes] ^= 1 << bit
    message.payload = bytes(damaged)
    assembler = _started()
    for whole in messages[:-1]:
        assembler.feed(whole.SerializeToString())

    with pytest.raises(StreamCorruptError, match="checksum"):
        assembler.feed(messages[-1].SerializeToString())


def test_an_epoch_with_its_end_comes_out() -> None:
    """Batches come in order, then the end with the token of the next epoch."""
    assembler = _started()

    events = [
        event
        for message in epoch_messages(0)
        if (event := assembler.feed(message.SerializeToString()))
    ]

    assert [0, 4, 8] == [e.header.position for e in events if isinstance(e, BatchEvent)]
    assert EpochEndEvent(0, token_at(1, 0)) == events[-1]


def test_a_missing_batch_is_noticed_at_the_end_of_the_epoch() -> None:
    """The counts of the end are those of what came."""
    assembler = _started()
    messages = list(epoch_messages(0))
    for message in messages[1:-1]:
        assembler.feed(message.SerializeToString())

    with pytest.raises(
        StreamCorruptError, match=r"ended after 2 batches with 8 samples, .* 3 with 12"
    ):
        assembler.feed(messages[-1].SerializeToString())


def test_a_heartbeat_changes_nothing() -> None:
    """Heartbeats may come between any two messages, also within a batch."""
    assembler = _started()
    first, *rest = batch_messages(
        [bytes(80)], token=token_at(0, 4), sample_count=10, chunk_bytes=50
    )
    assembler.feed(first.SerializeToString())

    assembler.feed(
        pb.ReadBatchesResponse(heartbeat=pb.Heartbeat(waiting_ms=5000)).SerializeToString()
    )

    assert isinstance(assembler.feed(rest[0].SerializeToString()), BatchEvent)


BATCH = batch_messages([bytes(80)], token=token_at(0, 4), sample_count=10, chunk_bytes=50)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        pytest.param([BATCH[0]], "started with 'batch'", id="no start"),
        pytest.param([start_message(), start_message()], "second 'start'", id="two starts"),
        pytest.param([start_message(), BATCH[1]], "outside of a batch", id="chunk alone"),
        pytest.param([start_message(), BATCH[0], BATCH[0]], "after 50 of 80", id="batch in batch"),
        pytest.param(
            [start_message(), *BATCH, BATCH[1]], "outside of a batch", id="chunk after the last"
        ),
        pytest.param([start_message(), pb.ReadBatchesResponse()], "no event", id="empty"),
    ],
)
def test_a_message_out_of_place_is_refused(
    messages: list[pb.ReadBatchesResponse], complaint: str
) -> None:
    """What the protocol does not allow is an error that says what came."""
    assembler = StreamAssembler(_allocate)

    for message in messages[:-1]:
        assembler.feed(message.SerializeToString())

    with pytest.raises(StreamCorruptError, match=complaint):
        assembler.feed(messages[-1].SerializeToString())
