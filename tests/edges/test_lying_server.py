"""Whatever sizes, counts, offsets and lengths a server sends, nothing is made ready for a lie."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import numpy as np
import pytest
import xxhash
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.client import BatchReader, Deadlines, Place, ReadOptions, RemoteDataset, Transport
from headrace.client.options.settings import Backoff
from headrace.client.servers.status import error_from_call, may_retry, retry_after_s
from headrace.client.wire.assembler import BatchEvent, StreamAssembler
from headrace.client.wire.bounds import Bounds
from headrace.errors import HeadraceError, StreamCorruptError
from headrace.order import OrderSpec, decode_token
from headrace.ring import SLOT_HEADER_BYTES, open_slot, seal_slot
from headrace.v1 import shard_service_pb2 as pb
from support.scripted_server import scripted_server
from support.wire import batch_messages, epoch_messages, start_message, token_at, values

MOST_BYTES = 4096
HONEST = [[start, start + 1, start + 2, start + 3] for start in (0, 4, 8)]

Messages = list[pb.ReadBatchesResponse]


@dataclass(slots=True)
class Heard:
    """What became of a stream whose server lied.

    Attributes:
        batches: The values of each batch.
        failures: What the reader retried, or raised.
        sizes: Of all memory that was asked for.
    """

    batches: list[list[int]] = field(default_factory=list)
    failures: list[HeadraceError] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """Note the size, and make as much."""
        self.sizes.append(size)
        assert 0 <= size <= MOST_BYTES
        return np.empty(size, np.uint8)


def _told(lie: Callable[[pb.ReadBatchesResponse], Messages]) -> Heard:
    """Read an epoch of three batches, of whose second a server lies once."""

    def lying(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del request, context
        honest = list(epoch_messages(0))
        yield from [start_message(), honest[0], *lie(honest[1]), *honest[2:]]

    def honest(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del context
        position = decode_token(request.resume_token).position if request.resume_token else 0
        yield from [start_message(), *epoch_messages(0, position)]

    heard = Heard()
    with scripted_server(lying, honest) as server:
        reader = BatchReader(
            [server.address],
            ReadOptions("d", OrderSpec(unit=4), 4, end_epoch=1),
            place=Place(),
            deadlines=Deadlines(connect_s=10, silence_s=10, give_up_s=10),
            allocate=heard.allocate,
            backoff=Backoff(first_s=0.001, most_s=0.01),
            on_failure=heard.failures.append,
            max_batch_bytes=MOST_BYTES,
        )
        for event in reader.events():
            if isinstance(event, BatchEvent):
                heard.batches.append(event.columns["x"].values.tolist())
    return heard


def _header(**numbers: int | list[int]) -> Callable[[pb.ReadBatchesResponse], Messages]:
    def lie(message: pb.ReadBatchesResponse) -> Messages:
        for name, number in numbers.items():
            if isinstance(number, list):
                del getattr(message.batch, name)[:]
                getattr(message.batch, name).extend(number)
            else:
                setattr(message.batch, name, number)
        return [message]

    return lie


def _chunk(offset: int, payload: bytes) -> Callable[[pb.ReadBatchesResponse], Messages]:
    def lie(message: pb.ReadBatchesResponse) -> Messages:
        message.payload = message.payload[:8]
        return [
            message,
            pb.ReadBatchesResponse(chunk=pb.Chunk(payload_offset=offset), payload=payload),
        ]

    return lie


def _surplus(message: pb.ReadBatchesResponse) -> Messages:
    message.payload += bytes(64)
    message.batch.payload_bytes += 64
    message.batch.payload_xxh3 = xxhash.xxh3_64_intdigest(message.payload)
    return [message]


def _end(batch_count: int, sample_count: int) -> Callable[[pb.ReadBatchesResponse], Messages]:
    def lie(message: pb.ReadBatchesResponse) -> Messages:
        del message
        end = pb.EpochEnd(epoch=0, batch_count=batch_count, sample_count=sample_count)
        return [pb.ReadBatchesResponse(epoch_end=end)]

    return lie


LIES = {
    **{
        f"payload_bytes {size}": _header(payload_bytes=size)
        for size in (MOST_BYTES + 1, *(1 << power for power in range(33, 63)), -1, -(1 << 63))
    },
    "sample_count -1": _header(sample_count=-1, buffer_bytes=[-8]),
    "sample_count 2^31-1": _header(sample_count=(1 << 31) - 1),
    "sample_count above the global batch": _header(sample_count=5),
    "pad_count -1": _header(pad_count=-1),
    "pad_count above the samples": _header(pad_count=5),
    "no buffer": _header(buffer_bytes=[]),
    "a buffer below zero": _header(buffer_bytes=[-32]),
    "a buffer of 2^62": _header(buffer_bytes=[1 << 62]),
    "two buffers": _header(buffer_bytes=[32, 1 << 62]),
    "a chunk at 2^62": _chunk(1 << 62, bytes(24)),
    "a chunk below zero": _chunk(-8, bytes(24)),
    "a chunk too long": _chunk(8, bytes(25)),
    "a chunk of nothing": _chunk(8, b""),
    "bytes behind the buffers": _surplus,
    "an end with -1 batches": _end(-1, -4),
    "an end with 2^62 samples": _end(1, 1 << 62),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_costs_no_memory_and_no_sample(
    lie: Callable[[pb.ReadBatchesResponse], Messages],
) -> None:
    """It is `StreamCorruptError`, nothing is allocated for it, and the stream goes on exactly."""
    heard = _told(lie)

    assert [StreamCorruptError] == [type(failure) for failure in heard.failures]
    assert HONEST == heard.batches


def test_a_batch_that_is_honest_and_too_large_ends_the_run() -> None:
    """It would come again: the error says what to give, and is raised at once."""
    size = MOST_BYTES + 64
    with pytest.raises(StreamCorruptError, match=rf"give Transport\(max_batch_bytes={size}\)"):
        _told(_header(payload_bytes=size, buffer_bytes=[size]))


@pytest.mark.parametrize(
    "shape", [[-1, -1], [0, 1 << 62, 1 << 62], [1 << 62], [1 << 31, 1 << 31], [1] * 65]
)
def test_items_of_a_shape_that_no_array_has_are_refused(shape: list[int]) -> None:
    """Whatever the product of their lengths is."""
    column = pb.Column(
        name="x",
        kind=pb.COLUMN_KIND_TENSOR,
        element_type=pb.ELEMENT_TYPE_INT64,
        item_shape=shape,
    )
    assembler = StreamAssembler(Heard().allocate)
    with pytest.raises(StreamCorruptError, match="has items of shape"):
        assembler.feed(start_message([column]).SerializeToString())


def _ragged() -> tuple[pb.ReadBatchesResponse, pb.ReadBatchesResponse]:
    columns = [
        pb.Column(
            name="r",
            kind=pb.COLUMN_KIND_RAGGED,
            element_type=pb.ELEMENT_TYPE_INT16,
            nullable=True,
        ),
        pb.Column(
            name="t",
            kind=pb.COLUMN_KIND_TENSOR,
            element_type=pb.ELEMENT_TYPE_INT64,
            item_shape=[2],
        ),
    ]
    offsets = np.array([0, 1, 3, 3], np.int64).tobytes()
    buffers = [b"\1\1\0", offsets, bytes(6), values(0, 0, 6).tobytes()]
    (batch,) = batch_messages(buffers, token=token_at(0, 4), sample_count=3)
    return start_message(columns), batch


NUMBERS = st.one_of(
    st.sampled_from([-1, 0, 1, 7, 8, 64, 1 << 31, 1 << 33, 1 << 62, (1 << 63) - 1, -(1 << 63)]),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
SMALL = NUMBERS.map(lambda number: (number + (1 << 31)) % (1 << 32) - (1 << 31))


@given(
    numbers=st.fixed_dictionaries(
        {},
        optional={
            "sample_count": SMALL,
            "pad_count": SMALL,
            "payload_bytes": NUMBERS,
        },
    ),
    lengths=st.dictionaries(st.integers(0, 3), NUMBERS, max_size=4),
    offsets=st.dictionaries(st.integers(0, 3), NUMBERS, max_size=4),
    cut=st.integers(0, 200),
)
def test_no_number_of_a_header_brings_another_error(
    *, numbers: dict[str, int], lengths: dict[int, int], offsets: dict[int, int], cut: int
) -> None:
    """A batch comes out whole, or `StreamCorruptError`: with the checksum that its payload has."""
    start, batch = _ragged()
    payload = bytearray(batch.payload)
    for place, number in offsets.items():
        payload[64 + 8 * place : 72 + 8 * place] = number.to_bytes(8, "little", signed=True)
    batch.payload = bytes(payload)
    batch.batch.payload_xxh3 = xxhash.xxh3_64_intdigest(batch.payload)
    _header(**numbers)(batch)
    for place, number in lengths.items():
        batch.batch.buffer_bytes[place] = number
    first, rest = batch.payload[:cut], batch.payload[cut:]
    batch.payload = first
    chunk = pb.ReadBatchesResponse(chunk=pb.Chunk(payload_offset=len(first)), payload=rest)

    assembler = StreamAssembler(Heard().allocate, bounds=Bounds(MOST_BYTES, 4))
    assembler.feed(start.SerializeToString())
    try:
        event = assembler.feed(batch.SerializeToString())
        event = event or assembler.feed(chunk.SerializeToString())
    except StreamCorruptError:
        return

    if event is None:
        # More bytes are said to follow, which never came.
        assert len(first + rest) < batch.batch.payload_bytes <= MOST_BYTES
        return
    assert isinstance(event, BatchEvent)
    offsets_found = event.columns["r"].offsets
    assert offsets_found is not None
    assert event.columns["r"].values.size == offsets_found[-1]
    assert (len(offsets_found) - 1, 2) == event.columns["t"].values.shape


def _failed(status: status_pb2.Status, text: str = "busy") -> HeadraceError:
    class Call(grpc.RpcError):
        """A call that failed so."""

        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        def details(self) -> str:
            return text

        def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:  # type: ignore[override]
            return (("grpc-status-details-bin", status.SerializeToString()),)

    return error_from_call(Call(), target="here")


def _status(
    *details: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo,
) -> status_pb2.Status:
    status = status_pb2.Status()
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status


@given(
    seconds=NUMBERS,
    nanos=SMALL,
    told=st.one_of(st.none(), st.sampled_from(["nan", "inf", "-1", "1e400", "soon", ""])),
)
def test_a_wait_that_is_none_is_no_error_and_no_wait_without_end(
    seconds: int, nanos: int, told: str | None
) -> None:
    """What a server asks to wait is a number >= 0, or counts as not said."""
    metadata = {"message": "m", "self": "s", "cls": "c"}
    metadata |= {} if told is None else {"retry_after_s": told}
    info = error_details_pb2.ErrorInfo(reason="STREAM_LIMIT", domain="headrace", metadata=metadata)
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=seconds, nanos=nanos))
    for details in ([info, retry], [info]):
        error = _failed(_status(*details))
        wait_s = retry_after_s(error)

        assert "m" == error.metadata["message"]
        assert wait_s is None or wait_s >= 0
        assert may_retry(error) == (wait_s is not None)


@pytest.mark.parametrize(
    ("text", "is_tried_again"),
    [
        ("local_rate_limited", True),
        ("", True),
        ("CLIENT: Received message larger than max (9 vs. 4)", False),
        ("SERVER: Sent message larger than max (9 vs. 4)", False),
    ],
)
def test_what_a_proxy_refuses_for_now_is_tried_again(text: str, is_tried_again: bool) -> None:  # noqa: FBT001
    """And a message that is too large for gRPC is not."""
    assert is_tried_again == may_retry(_failed(status_pb2.Status(), text))


@given(
    payload=st.integers(0, (1 << 64) - 1),
    payload_bytes=st.integers(0, (1 << 64) - 1),
    message_bytes=st.one_of(st.integers(0, 200), st.integers(0, (1 << 64) - 1)),
    start=st.one_of(st.integers(0, 64).map(lambda n: n * 64), st.integers(0, (1 << 64) - 1)),
)
def test_no_number_of_a_slot_leads_out_of_the_ring(
    payload: int, payload_bytes: int, message_bytes: int, start: int
) -> None:
    """What opens lies inside, also under the right checksum; all else is `StreamCorruptError`."""
    ring = np.zeros(4096, np.uint8)
    slot = ring[64:]
    seal_slot(slot, generation=1, message=b"", start=128, payload_bytes=8)
    head = slot[:SLOT_HEADER_BYTES]
    numbers = np.array([payload, payload_bytes, message_bytes], np.uint64)
    head[16:40] = numbers.view(np.uint8)
    message = slot[SLOT_HEADER_BYTES:][: min(message_bytes, 4096)]
    digest = xxhash.xxh3_64_intdigest(head[:56].tobytes() + message.tobytes())
    head[56:64] = np.array([digest], np.uint64).view(np.uint8)
    for place in (64, start):
        try:
            opened = open_slot(ring.data, start=place, generation=1)
        except StreamCorruptError:
            continue

        assert 64 <= opened.payload_start <= opened.payload_end <= ring.size


_LIES: list[tuple[str, object]] = [
    *[("sample_count", number) for number in (-1, 1 << 42, (1 << 63) - 1)],
    *[("fingerprint", text) for text in ("", "x", "A" * 32, "0" * 31)],
]


def _described(name: str, lie: object) -> str:
    """Ask for the length of a dataset of which a server lies; return what the error says of it."""
    with scripted_server(lambda *_: iter(())) as server:
        setattr(server.dataset, name, lie)
        # Such an answer may be a relay's fault, so the server is asked until the time is over.
        deadlines = Deadlines(connect_s=1)
        dataset = RemoteDataset(
            server.address, "d", batch_size=4, transport=Transport(deadlines=deadlines)
        )
        with pytest.raises(StreamCorruptError) as caught:
            len(dataset)
        return str(caught.value).replace(server.address, "SERVER")


def test_a_description_that_cannot_be_is_the_servers_fault() -> None:
    """Not the caller's: `len` raises what names the server and the number."""
    with ThreadPoolExecutor(len(_LIES)) as at_once:
        said = list(at_once.map(_described, *zip(*_LIES, strict=True)))

    for (name, _), text in zip(_LIES, said, strict=True):
        assert re.search(f"SERVER.*{name}", text)
