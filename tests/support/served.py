"""Talk to a real server as docs/protocol.md says, with NumPy alone; shares no code with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import numpy as np
import pyarrow as pa
import xxhash
from google.rpc import error_details_pb2, status_pb2
from numpy.typing import NDArray

from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from support.asking import asking

TIMEOUT_S = 120.0

_DTYPES = {
    pb.ELEMENT_TYPE_BOOL: "?",
    pb.ELEMENT_TYPE_INT8: "<i1",
    pb.ELEMENT_TYPE_INT16: "<i2",
    pb.ELEMENT_TYPE_INT32: "<i4",
    pb.ELEMENT_TYPE_INT64: "<i8",
    pb.ELEMENT_TYPE_UINT8: "<u1",
    pb.ELEMENT_TYPE_UINT16: "<u2",
    pb.ELEMENT_TYPE_UINT32: "<u4",
    pb.ELEMENT_TYPE_UINT64: "<u8",
    pb.ELEMENT_TYPE_FLOAT16: "<f2",
    pb.ELEMENT_TYPE_FLOAT32: "<f4",
    pb.ELEMENT_TYPE_FLOAT64: "<f8",
}


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch as it came."""

    header: pb.BatchHeader
    payload: bytes
    chunk_sizes: tuple[int, ...]
    columns: Sequence[pb.Column]

    @property
    def values(self) -> dict[str, list[object]]:
        """The samples' values, by column."""
        return decode(self.columns, self.header, self.payload)

    @property
    def ids(self) -> list[int]:
        """The samples' ids, pads included."""
        return cast("list[int]", self.values["headrace.sample_id"])


@dataclass(slots=True)
class Transcript:
    """All that a stream sent."""

    start: pb.StreamStart | None = None
    batches: list[ReadBatch] = field(default_factory=list)
    ends: list[pb.EpochEnd] = field(default_factory=list)
    heartbeats: list[pb.Heartbeat] = field(default_factory=list)

    @property
    def tokens(self) -> list[bytes]:
        """The token after each batch."""
        return [batch.header.resume_token for batch in self.batches]

    @property
    def ids(self) -> list[list[int]]:
        """The ids of each batch."""
        return [batch.ids for batch in self.batches]


def stub_of(channel: grpc.Channel) -> pb_grpc.ShardServiceStub:
    """The stock stub."""
    return pb_grpc.ShardServiceStub(channel)


def epoch_request(**fields: Any) -> pb.ReadBatchesRequest:
    """Ask for one epoch as the only rank, from its start or from a token, unless fields differ."""
    start = {} if "resume_token" in fields else {"epoch_start": pb.EpochStart()}
    return asking(pb.ReadBatchesRequest, **{"world_size": 1, "epoch_count": 1, **start, **fields})


def messages_of(
    channel: grpc.Channel, request: pb.ReadBatchesRequest
) -> Iterator[pb.ReadBatchesResponse]:
    """Open a stream."""
    call = stub_of(channel).ReadBatches(request, timeout=TIMEOUT_S)
    return cast("Iterator[pb.ReadBatchesResponse]", call)


def read_until_failure(
    messages: Iterator[pb.ReadBatchesResponse],
) -> tuple[list[pb.ReadBatchesResponse], grpc.RpcError]:
    """Return the messages that came, and how the call failed."""
    seen = []
    try:
        for message in messages:
            seen.append(message)  # noqa: PERF402 - those before the failure are kept
    except grpc.RpcError as error:
        return seen, error
    raise AssertionError("the call succeeded")


def read(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> Transcript:
    """Read a whole stream."""
    return transcript(messages_of(channel, request))


def transcript(messages: Iterator[pb.ReadBatchesResponse]) -> Transcript:
    """Put the messages of a stream together, and check what holds for every stream."""
    seen = Transcript()
    header, parts = pb.BatchHeader(), [b""]
    for message in messages:
        event = message.WhichOneof("event")
        if event == "start":
            assert seen.start is None
            seen.start = message.start
        elif event == "epoch_end":
            seen.ends.append(message.epoch_end)
        elif event == "heartbeat":
            seen.heartbeats.append(message.heartbeat)
        else:
            if event == "batch":
                header, parts = message.batch, [message.payload]
            else:
                assert message.chunk.payload_offset == sum(map(len, parts))
                parts.append(message.payload)
            if sum(map(len, parts)) == header.payload_bytes:
                assert seen.start is not None
                payload = b"".join(parts)
                assert xxhash.xxh3_64_intdigest(payload) == header.payload_xxh3
                sizes = tuple(len(part) for part in parts)
                seen.batches.append(ReadBatch(header, payload, sizes, seen.start.columns))
    return seen


def joined(frames: Sequence[bytes]) -> tuple[pb.BatchHeader, bytes]:
    """Return the head and the payload of the messages of one batch."""
    messages = [pb.ReadBatchesResponse.FromString(frame) for frame in frames]
    return messages[0].batch, b"".join(message.payload for message in messages)


def decode(
    columns: Sequence[pb.Column], header: pb.BatchHeader, payload: bytes
) -> dict[str, list[object]]:
    """Decode a payload into Python values, None where null."""
    buffers = _buffers(header.buffer_bytes, payload)
    count = header.sample_count
    values: dict[str, list[object]] = {}
    for column in columns:
        dtype = np.dtype(_DTYPES[column.element_type])
        valid = next(buffers).view(np.bool_) if column.nullable else np.ones(count, np.bool_)
        assert valid.size == count
        if column.kind == pb.COLUMN_KIND_TENSOR:
            rows = next(buffers).view(dtype).reshape(count, *column.item_shape).tolist()
        else:
            edges = next(buffers).view(np.int64)
            assert edges.size == count + 1
            flat = next(buffers)
            rows = [_item(column, flat, dtype, edges[i : i + 2].tolist()) for i in range(count)]
        for row, is_valid in zip(rows, valid, strict=True):
            assert is_valid or not np.any(np.array(row if isinstance(row, list) else 0))
        values[column.name] = [row if ok else None for row, ok in zip(rows, valid, strict=True)]
    assert next(buffers, None) is None
    return values


def failure_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, error_details_pb2.ErrorInfo]:
    """Return code and reason of a failed call."""
    return error.code(), cast("error_details_pb2.ErrorInfo", detail(error, "ErrorInfo"))


def detail(error: grpc.RpcError, name: str) -> object:
    """Return one of the details of a failed call; None if it has none of that name."""
    for key, value in cast("Sequence[tuple[str, bytes]]", error.trailing_metadata()):
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            assert status.message == error.details()
            assert status.code == error.code().value[0]
            for packed in status.details:
                found = getattr(error_details_pb2, name)()
                if packed.Unpack(found):
                    return found
    return None


def rich_table(sample_count: int) -> pa.Table:
    """Make a table with a column of every type that can be sent; all follow from the id."""
    rows = [_rich_row(number) for number in range(sample_count)]
    return pa.Table.from_pylist(rows, schema=RICH_SCHEMA)


def _rich_row(number: int) -> dict[str, object]:
    return {
        "number": number,
        "tiny": number % 200 - 100,
        "flag": number % 3 == 0,
        "half": float(number % 1000),
        "triple": [number % 7, number % 11, number % 13],
        "wide": [float(number + place) for place in range(40)],
        "big": [(number + place) % 251 for place in range(4500)] if number % 50 == 0 else None,
        "grid": [[number, 1, 2], [3, 4, -number]],
        "maybe": None if number % 4 == 0 else number / 3,
        "maybe_flag": None if number % 5 == 0 else number % 2 == 0,
        "text": None if number % 6 == 0 else f"sample {number} é" * (number % 4),
        "long_text": f"{number}" * (number % 9),
        "blob": bytes([number % 256, 0]) * (number % 5),
        "digest": number.to_bytes(6, "big"),
        "ragged": [number % 100 + place for place in range(number % 6)],
        "maybe_ragged": None if number % 3 == 1 else [number / 2] * (number % 4),
        "flags": [place % 2 == 0 for place in range(number % 4)],
    }


def _required(name: str, arrow_type: pa.DataType) -> pa.Field[Any]:
    return pa.field(name, arrow_type, nullable=False)


RICH_SCHEMA = pa.schema(
    [
        _required("number", pa.int64()),
        _required("tiny", pa.int8()),
        _required("flag", pa.bool_()),
        _required("half", pa.float16()),
        _required("triple", pa.list_(pa.uint8(), 3)),
        _required("wide", pa.list_(pa.float32(), 40)),
        pa.field("big", pa.list_(pa.uint8(), 4500)),
        _required("grid", pa.list_(pa.list_(pa.int32(), 3), 2)),
        pa.field("maybe", pa.float64()),
        pa.field("maybe_flag", pa.bool_()),
        pa.field("text", pa.string()),
        _required("long_text", pa.large_string()),
        _required("blob", pa.large_binary()),
        _required("digest", pa.binary(6)),
        _required("ragged", pa.list_(pa.int32())),
        pa.field("maybe_ragged", pa.large_list(pa.float64())),
        _required("flags", pa.list_(pa.bool_())),
    ]
)


def _buffers(lengths: Sequence[int], payload: bytes) -> Iterator[NDArray[np.uint8]]:
    start = end = 0
    for length in lengths:
        start = (end + 63) // 64 * 64
        assert payload[end:start] == bytes(start - end)
        end = start + length
        yield np.frombuffer(payload, np.uint8)[start:end]
    assert end == len(payload)


def _item(
    column: pb.Column, flat: NDArray[np.uint8], dtype: np.dtype[np.generic], edges: list[int]
) -> object:
    start, end = (edge * dtype.itemsize for edge in edges)
    raw = flat[start:end].tobytes()
    if column.kind == pb.COLUMN_KIND_STRING:
        return raw.decode()
    if column.kind == pb.COLUMN_KIND_BYTES:
        return raw
    return np.frombuffer(raw, dtype).tolist()
