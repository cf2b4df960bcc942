"""Claims about batches that are made together: the contract of `batch_maker`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BadArgumentError, RebalanceError
from headrace.server.batch.targets import WireOutlet
from headrace.server.kernels.loader import LOOPS
from headrace.server.stream.batch_maker import TOGETHER_BYTES, BatchMaker
from headrace.server.stream.stage_plugs import NO_STAGES
from headrace.server.stream.stream_setup import stream_contents
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.stream_counts import StreamTally
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.plain_writer import PlainWriter
from support.streams import Streams, streams_of


@pytest.fixture(scope="module")
def streams(rich_url: str) -> Iterator[Streams]:
    """Streams of every type of column, of which nothing has to be waited for."""
    with streams_of(rich_url) as opened:
        for _ in opened.open(_request(8)).messages():
            pass
        yield opened


def _request(batch_size: int, **fields: object) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset="small",
        order=pb.OrderSpec(seed=3),
        global_batch_size=batch_size,
        epoch_start=pb.EpochStart(),
        with_ids=True,
        **{"world_size": 1, "epoch_count": 1, **fields},  # type: ignore[arg-type]  # protobuf checks them
    )


def _alone(streams: Streams, request: pb.ReadBatchesRequest) -> Iterator[bytes]:
    """Make a stream's batches one by one, with NumPy and protobuf."""
    served = streams.served
    contents = stream_contents(NO_STAGES.of_batches(request), served)
    maker = BatchMaker(
        contents,
        blocks=served.blocks(streams.cache),
        outlet=WireOutlet(contents.max_chunk_bytes),
        max_batch_bytes=1 << 27,
    )
    maker._writer = PlainWriter(contents.columns, maker._writer.projection)
    for planned, _ in contents.plans:
        for batch in planned:
            made = maker.make([batch])
            assert made is not None
            yield from (message for message, _ in made.messages)


def _batches(messages: Iterator[bytes]) -> list[bytes]:
    """Return the messages that are batches, or parts of them."""
    kinds = {"batch", "chunk"}
    return [
        message
        for message in messages
        if pb.ReadBatchesResponse.FromString(message).WhichOneof("event") in kinds
    ]


@pytest.mark.parametrize("batch_size", [3, 16, 37, 500])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"end": pb.END_MODE_UNEVEN, "world_size": 3, "rank": 1},
        {"end": pb.END_MODE_PAD, "world_size": 1},
        {"columns": ["number", "wide"], "max_chunk_bytes": 1 << 16},
        {"columns": ["text", "ragged", "big"], "epoch_count": 2},
    ],
    ids=["all", "uneven", "pad", "small messages", "two epochs"],
)
def test_batches_made_together_are_those_made_alone(
    streams: Streams, batch_size: int, fields: dict[str, object]
) -> None:
    """Every message is, byte for byte, what NumPy and protobuf make of its batch by itself."""
    request = _request(batch_size, **fields)

    made = _batches(streams.open(request).messages())

    assert made == list(_alone(streams, request))


def _parts(message: bytes) -> list[bytes]:
    """Return the messages in one, as they would have come by themselves; itself if it has none."""
    held = pb.ReadBatchesResponse.FromString(message).messages
    for each in held:
        # It is of another length where the message begins elsewhere.
        each.batch.head_padding = b""
    return [each.SerializeToString() for each in held] or [message]


def _unpadded(message: bytes) -> bytes:
    response = pb.ReadBatchesResponse.FromString(message)
    response.batch.head_padding = b""
    return response.SerializeToString()


@pytest.mark.parametrize("group_bytes", [1, 1 << 18, 1 << 19, 3 << 20])
@pytest.mark.parametrize("columns", [["number", "wide"], ["text", "ragged", "big"], []])
def test_groups_hold_the_batches_made_alone(
    streams: Streams, group_bytes: int, columns: list[str]
) -> None:
    """In their order, each whole, in messages within the limit; the first batch is by itself."""
    wanted = list(_alone(streams, _request(16, columns=columns)))
    messages = streams.open(_request(16, columns=columns, max_group_bytes=group_bytes)).messages()

    made = [message for message in messages if _is_of_batches(message)]

    assert [_unpadded(each) for each in wanted] == [
        _unpadded(part) for message in made for part in _parts(message)
    ]
    groups = [message for message in made if len(_parts(message)) > 1]
    assert (made[0] not in groups, bool(groups)) == (True, group_bytes > 1)
    assert all(len(message) <= group_bytes for message in groups)


def _is_of_batches(message: bytes) -> bool:
    response = pb.ReadBatchesResponse.FromString(message)
    return response.WhichOneof("event") in {None, "batch"}


@pytest.mark.parametrize("columns", [["number", "wide"], ["text", "ragged", "big"]])
def test_payloads_in_a_group_begin_at_multiples_of_64(streams: Streams, columns: list[str]) -> None:
    """In the message that gRPC carries, wherever their batch begins in it."""
    request = _request(16, columns=columns, max_group_bytes=1 << 20)
    payload_count = 0
    for message in streams.open(request).messages():
        at = 0
        for part in pb.ReadBatchesResponse.FromString(message).messages:
            at = message.index(part.payload, at)
            payload_count += 1
            assert not at % 64
            at += len(part.payload)

    assert payload_count > 20


def test_a_batch_over_the_limit_is_refused(streams: Streams) -> None:
    """A payload over max_batch_bytes is refused before memory is taken for it."""
    request = _request(100, columns=["number"])
    contents = stream_contents(NO_STAGES.of_batches(request), streams.served)
    maker = BatchMaker(
        contents,
        blocks=streams.served.blocks(streams.cache),
        outlet=WireOutlet(1 << 20),
        max_batch_bytes=799,
    )
    planned, _ = next(contents.plans)

    with pytest.raises(BadArgumentError, match="bytes exceeds this server's limit of 799"):
        maker.make(planned)


def test_several_batches_are_made_together(streams: Streams) -> None:
    """As many as have 2 MiB, after the first, which somebody waits for."""
    stream = streams.open(_request(32))
    made = {stream.batch_bytes for _ in stream.messages()}

    alone = max(map(len, _alone(streams, _request(32))))
    assert 4 * alone < max(made) <= TOGETHER_BYTES
    assert min(made - {0}) < alone


def test_eight_batches_of_a_quarter_mebibyte_and_their_ids_are_made_together(
    tmp_path: Path,
) -> None:
    """What is planned together is one pass, not a pass of seven and one of what is left."""
    numbers = pa.array(np.zeros(1 << 19, np.int32))
    table = pa.table({"row": pa.FixedSizeListArray.from_arrays(numbers, 1 << 13)})
    write_dataset(str(tmp_path / "d"), table, shard_samples=[64], block_bytes=1 << 18)
    request = _request(8, epoch_count=9)
    with streams_of(str(tmp_path / "d")) as opened:
        for _ in opened.open(request).messages():
            pass
        stream = opened.open(request)
        made = {stream.batch_bytes for _ in stream.messages()}

    assert 8 * (1 << 18) < max(made) <= TOGETHER_BYTES


def test_a_stream_ends_between_two_batches_that_were_made_together(streams: Streams) -> None:
    """Of batches that lie ready none goes out after the stream was told to end."""
    stream = streams.open(_request(16))
    messages = stream.messages()
    # The first batch, two more, and the first of four that were made together.
    for _ in range(1 + 1 + 2 + 1):
        next(messages)
    assert stream.batch_bytes > TOGETHER_BYTES // 16

    stream.interrupt(RebalanceError("go elsewhere"))

    with pytest.raises(RebalanceError):
        next(messages)


def test_batches_that_go_out_in_one_message_are_counted_together(streams: Streams) -> None:
    """Once it is sent, also where the stream ends behind it."""
    tally = StreamTally(Metrics().streams, "small", None)
    stream = streams.open(_request(16, max_group_bytes=1 << 20), observer=tally)
    messages = stream.messages()
    sent = count = 0
    while count < 2:
        message = pb.ReadBatchesResponse.FromString(next(messages))
        count = len(message.messages) or int(message.HasField("batch"))
        sent += count
    assert sent - count == tally.counts.batches

    stream.interrupt(RebalanceError("go elsewhere"))

    with pytest.raises(RebalanceError):
        next(messages)
    assert sent == tally.counts.batches


def test_where_blocks_are_missing_batches_are_made_as_they_come(
    streams: Streams, rich_url: str
) -> None:
    """A cache that holds a few blocks gives the same, and is left with no block pinned."""
    wanted = list(_alone(streams, _request(16)))
    with streams_of(rich_url, cache_bytes=1 << 18) as small:
        made = _batches(small.open(_request(16)).messages())
        pins = small.cache._slots.pins.tolist()

    assert wanted == made
    assert not any(pins)


@settings(deadline=None, max_examples=200)
@given(size=st.integers(241, 5000), seed=st.integers(0, 99))
def test_compiled_hashes_are_those_of_the_library(size: int, seed: int) -> None:
    """XXH3 as a compiled loop is that of the library, for any length that it is used for."""
    content = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)

    assert xxhash.xxh3_64_intdigest(content.data) == LOOPS.xxh3(content)
