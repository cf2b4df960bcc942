"""Columns are found in a payload, or the payload is refused."""

import gc

import numpy as np
import pytest

from headrace.client.wire.buffers import BufferPool
from headrace.client.wire.payload_layout import PayloadReader
from headrace.errors import StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb
from support.wire import X, pack

MATRIX = pb.Column(
    name="m",
    kind=pb.COLUMN_KIND_TENSOR,
    element_type=pb.ELEMENT_TYPE_FLOAT32,
    item_shape=[2, 3],
    nullable=True,
)
TEXT = pb.Column(name="t", kind=pb.COLUMN_KIND_STRING, element_type=pb.ELEMENT_TYPE_UINT8)
RAGGED = pb.Column(name="r", kind=pb.COLUMN_KIND_RAGGED, element_type=pb.ELEMENT_TYPE_INT16)


def _payload(*buffers: bytes) -> tuple[list[int], np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    lengths = [len(buffer) for buffer in buffers]
    return lengths, np.frombuffer(pack(buffers), dtype=np.uint8)


def test_every_kind_of_column_is_found() -> None:
    """Validity, offsets and values lie in that order, at multiples of 64 bytes."""
    matrix = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    lengths, payload = _payload(
        b"\x01\x00",
        matrix.tobytes(),
        np.array([0, 2, 5], dtype=np.int64).tobytes(),
        "häuf".encode(),
        np.array([0, 0, 3], dtype=np.int64).tobytes(),
        np.array([7, 8, 9], dtype=np.int16).tobytes(),
    )

    views = PayloadReader([MATRIX, TEXT, RAGGED]).decode(lengths, payload, sample_count=2)

    assert matrix.tolist() == views["m"].values.tolist()
    assert views["m"].valid is not None
    assert [True, False] == views["m"].valid.tolist()
    assert "häuf".encode() == views["t"].values.tobytes()
    assert views["r"].offsets is not None
    assert ([0, 0, 3], [7, 8, 9]) == (views["r"].offsets.tolist(), views["r"].values.tolist())


def test_views_share_the_memory_of_the_payload() -> None:
    """Nothing is copied."""
    lengths, payload = _payload(bytes(16))

    view = PayloadReader([X]).decode(lengths, payload, sample_count=2)["x"]

    assert np.shares_memory(view.values, payload)


@pytest.mark.parametrize(
    ("lengths", "size", "complaint"),
    [
        pytest.param([16, 8], 72, "2 buffers; its 1 columns need 1", id="a buffer too many"),
        pytest.param([], 0, "0 buffers; column 'x' needs one more", id="a buffer too few"),
        pytest.param(
            [24],
            24,
            r"24 bytes at 0 of a payload of 24; \(2,\) of int64 need 16",
            id="wrong length",
        ),
        pytest.param([16], 8, "16 bytes at 0 of a payload of 8", id="past the end"),
        pytest.param([-1], 8, "-1 bytes at 0", id="negative"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths: list[int], size: int, complaint: str) -> None:
    """A header that lies about its payload gives an error, not a wrong view."""
    payload = np.zeros(size, dtype=np.uint8)

    with pytest.raises(StreamCorruptError, match=complaint):
        PayloadReader([X]).decode(lengths, payload, sample_count=2)


def test_a_view_keeps_the_memory_of_its_payload() -> None:
    """A pooled buffer is not reused while a column of its batch is alive."""
    pool = BufferPool(idle_bytes=1 << 20)
    payload = pool.take(16)
    payload[:] = 7
    view = PayloadReader([X]).decode([16], payload, sample_count=2)["x"].values
    del payload
    gc.collect()

    pool.take(16)[:] = 9

    assert [0x0707070707070707] * 2 == view.tolist()


@pytest.mark.parametrize("offsets", [[0, 3, 2], [1, 2, 2], [0, -1, 2]])
def test_offsets_that_fall_are_refused(offsets: list[int]) -> None:
    """A slice between two of them would be some other sample's, or none."""
    lengths, payload = _payload(np.array(offsets, dtype=np.int64).tobytes(), b"ab")

    with pytest.raises(StreamCorruptError, match="offsets that decrease"):
        PayloadReader([TEXT]).decode(lengths, payload, sample_count=2)


def test_a_column_of_an_unknown_type_is_refused_by_name() -> None:
    """A newer server may send what this client cannot read; the message says what to do."""
    column = pb.Column(name="new", kind=pb.COLUMN_KIND_TENSOR)

    with pytest.raises(StreamCorruptError, match=r"'new' .* update the client"):
        PayloadReader([column])
