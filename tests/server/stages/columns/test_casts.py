"""Tests of what a server does with a batch before it sends it."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import any_pb2
from PIL import Image

from headrace.server.batch.batch_values import Batch, Values
from headrace.server.batch.stage import ColumnStage, Work
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.stages.columns.casts import Cast, Pad, Stack
from headrace.v1 import columns_pb2 as columns_pb
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed
from support.datasets import write_dataset
from support.running import channel_of
from support.served import Transcript, epoch_request, failure_of, read

SAMPLES = 60


def finished(work: Work[Batch]) -> Batch:
    """Return what a step makes, all at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            made: Batch = end.value
            return made


def _photo(number: int) -> bytes:
    """A picture that is red on its left, blue on its right, and brighter from sample to sample."""
    pixels = np.zeros((40 + number % 3, 60, 3), np.uint8)
    pixels[:, :30, 0] = 100 + number
    pixels[:, 30:, 2] = 100 + number
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG" if number % 2 else "JPEG", quality=95)
    return file.getvalue()


def _table() -> pa.Table:
    numbers = range(SAMPLES)
    return pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "ratio": pa.array([number / 8 for number in numbers], pa.float64()),
            "tokens": pa.array(
                [list(range(number, number + number % 7)) for number in numbers],
                pa.list_(pa.field("item", pa.int32(), nullable=False)),
            ),
            "pair": pa.array(
                [None if number % 5 == 0 else [number, -number] for number in numbers],
                pa.list_(pa.field("item", pa.int16(), nullable=False)),
            ),
            "photo": pa.array([None if n % 9 == 0 else _photo(n) for n in numbers], pa.binary()),
            "text": pa.array([f"sample {number}" for number in numbers]),
        }
    )


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A server of samples with ragged columns and pictures."""
    url = str(tmp_path_factory.mktemp("steps") / "d")
    write_dataset(url, _table(), shard_samples=[25, 35], block_bytes=4096)
    with channel_of({"d": url}, max_batch_bytes=1 << 22) as opened:
        yield opened


def _request(*steps: any_pb2.Any, columns: list[str], **fields: Any) -> pb.ReadBatchesRequest:
    request = epoch_request(
        dataset="d",
        order=pb.OrderSpec(seed=2),
        global_batch_size=12,
        with_ids=True,
        columns=columns,
        stages=steps,
    )
    request.MergeFrom(pb.ReadBatchesRequest(**fields))
    return request


def _rows(seen: Transcript) -> dict[int, dict[str, Any]]:
    """Return what came of each sample, by its id."""
    return {
        sample: {name: values[row] for name, values in batch.values.items()}
        for batch in seen.batches
        for row, sample in enumerate(batch.ids)
    }


def _cast(column: str, element_type: pb.ElementType) -> any_pb2.Any:
    return packed(columns_pb.Cast(column=column, element_type=element_type))


def _pad(column: str, length: int, **fields: Any) -> any_pb2.Any:
    return packed(columns_pb.Pad(column=column, length=length, **fields))


def test_numbers_are_cast(channel: grpc.Channel) -> None:
    """Whatever a type can hold arrives in it, and the stream's columns say so."""
    steps = [_cast("number", pb.ELEMENT_TYPE_UINT8), _cast("ratio", pb.ELEMENT_TYPE_FLOAT16)]
    seen = read(channel, _request(*steps, columns=["number", "ratio"]))

    assert seen.start is not None
    assert [pb.ELEMENT_TYPE_UINT8, pb.ELEMENT_TYPE_FLOAT16] == [
        column.element_type for column in seen.start.columns[:2]
    ]
    assert all(
        (sample, sample / 8) == (row["number"], row["ratio"]) for sample, row in _rows(seen).items()
    )


def test_ragged_rows_are_padded_or_stacked(channel: grpc.Channel) -> None:
    """Rows have one length, their own length stands beside them, nulls stay null."""
    steps = [
        _pad("tokens", 4, fill=-1, truncate=True),
        packed(columns_pb.Stack(column="pair", item_shape=[2, 1])),
    ]
    found = _rows(read(channel, _request(*steps, columns=["tokens", "pair"])))

    for sample, row in found.items():
        tokens = list(range(sample, sample + min(4, sample % 7)))
        assert len(tokens) == row["tokens.length"]
        assert tokens + [-1] * (4 - len(tokens)) == row["tokens"]
        assert row["pair"] == (None if sample % 5 == 0 else [[sample], [-sample]])


@pytest.mark.parametrize(
    "fit", [images_pb.IMAGE_FIT_COVER, images_pb.IMAGE_FIT_CONTAIN, images_pb.IMAGE_FIT_STRETCH]
)
def test_files_of_images_become_pixels(channel: grpc.Channel, fit: images_pb.ImageFit) -> None:
    """JPEG and PNG have the wanted size, halves and brightness are where they were."""
    step = images_pb.DecodeImage(column="photo", height=16, width=16, fit=fit)
    seen = read(channel, _request(packed(step), columns=["photo"]))

    for sample, row in _rows(seen).items():
        if sample % 9 == 0:
            assert row["photo"] is None
            continue
        pixels = np.array(row["photo"])
        assert (16, 16, 3) == pixels.shape
        middle = pixels[8]
        bright = 100 + sample
        assert abs(int(middle[2, 0]) - bright) < 12
        assert abs(int(middle[13, 2]) - bright) < 12
        assert max(middle[2, 2], middle[13, 0]) < 30
        assert (pixels[0] == 0).all() == (fit == images_pb.IMAGE_FIT_CONTAIN)


def test_a_grey_picture_has_one_channel(channel: grpc.Channel) -> None:
    """Luminance alone, by the usual weights of the colours."""
    step = images_pb.DecodeImage(column="photo", height=8, width=8, channels=1)
    found = _rows(read(channel, _request(packed(step), columns=["photo"])))

    pixels = np.array(found[1]["photo"])
    assert (8, 8, 1) == pixels.shape
    assert abs(int(pixels[4, 1, 0]) - 0.299 * 101) < 5


_MIB = 1 << 20


@pytest.mark.parametrize(
    "step",
    [
        Pad(columns_pb.Pad(column="x", length=16 * _MIB)),
        Stack(columns_pb.Stack(column="x", item_shape=[16, _MIB])),
        Cast(columns_pb.Cast(column="x", element_type=pb.ELEMENT_TYPE_BOOL)),
    ],
)
def test_a_step_takes_little_memory_beside_what_it_makes(step: ColumnStage) -> None:
    """Rows of 16 MiB are padded, stacked and cast with 3 MiB beside the result."""
    column = WireColumn("x", pb.COLUMN_KIND_RAGGED, pb.ELEMENT_TYPE_INT8, np.dtype("i1"))
    flat = np.ones(2 * 16 * _MIB, np.int8)
    offsets = np.array([0, flat.size // 2, flat.size], np.int64)
    batch = Batch({"x": Values(column, flat, offsets)}, 2)

    tracemalloc.start()
    try:
        made = finished(step.work(batch))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert made.columns["x"].values.nbytes == flat.nbytes
    assert peak <= flat.nbytes + 3 * _MIB


def test_steps_do_not_depend_on_the_world_size(channel: grpc.Channel) -> None:
    """The samples of all ranks together are those of one rank, value by value."""
    steps = [
        packed(images_pb.DecodeImage(column="photo", height=4, width=4, channels=1)),
        _pad("tokens", 7),
        _cast("tokens", pb.ELEMENT_TYPE_FLOAT32),
    ]
    whole = _rows(read(channel, _request(*steps, columns=["photo", "tokens"])))
    parts: dict[int, dict[str, Any]] = {}
    for rank in range(5):
        request = _request(*steps, columns=["photo", "tokens"], rank=rank, world_size=5)
        parts |= _rows(read(channel, request))

    assert whole == parts


def _refused(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        read(channel, request)
    return str(failure_of(caught.value)[1].reason), str(caught.value.details())


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (any_pb2.Any(), "BAD_COORDINATES"),
        (_cast("number", pb.ELEMENT_TYPE_UNSPECIFIED), "BAD_COORDINATES"),
        (_cast("text", pb.ELEMENT_TYPE_INT8), "BAD_COORDINATES"),
        (_cast("none", pb.ELEMENT_TYPE_INT8), "BAD_COORDINATES"),
        (_cast("headrace.sample_id", pb.ELEMENT_TYPE_INT8), "BAD_COORDINATES"),
        (_cast("pair", pb.ELEMENT_TYPE_UINT8), "STAGE_FAILED"),
        (_pad("tokens", 0), "BAD_COORDINATES"),
        (_pad("tokens", 2**31), "BAD_COORDINATES"),
        (_pad("tokens", 2**28), "BAD_COORDINATES"),
        (_pad("number", 3), "BAD_COORDINATES"),
        (_pad("tokens", 3, fill=0.5), "BAD_COORDINATES"),
        (_pad("tokens", 3, fill=float("nan")), "BAD_COORDINATES"),
        (_pad("tokens", 3), "STAGE_FAILED"),
        (packed(columns_pb.Stack(column="pair")), "BAD_COORDINATES"),
        (packed(columns_pb.Stack(column="pair", item_shape=[2, 0])), "BAD_COORDINATES"),
        (packed(columns_pb.Stack(column="pair", item_shape=[1 << 40] * 4)), "BAD_COORDINATES"),
        (packed(columns_pb.Stack(column="tokens", item_shape=[2])), "STAGE_FAILED"),
        (
            packed(images_pb.DecodeImage(column="photo", height=0, width=1)),
            "BAD_COORDINATES",
        ),
        (
            packed(images_pb.DecodeImage(column="photo", height=1, width=1, channels=4)),
            "BAD_COORDINATES",
        ),
        (
            packed(images_pb.DecodeImage(column="text", height=1, width=1)),
            "BAD_COORDINATES",
        ),
        (
            packed(images_pb.DecodeImage(column="photo", height=60_000, width=60_000)),
            "BAD_COORDINATES",
        ),
    ],
)
def test_a_step_that_cannot_be_is_refused(
    channel: grpc.Channel, step: any_pb2.Any, reason: str
) -> None:
    """Hostile and mistaken steps fail by the table, before they take memory."""
    found, text = _refused(channel, _request(step, columns=[]))

    assert reason == found, text


def test_too_many_steps_are_refused(channel: grpc.Channel) -> None:
    """There are at most 64."""
    cast = _cast("tokens", pb.ELEMENT_TYPE_INT64)

    request = _request(*[cast] * 65, columns=["tokens"])
    assert "BAD_COORDINATES" == _refused(channel, request)[0]
