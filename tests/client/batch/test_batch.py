"""A batch is a mapping of tensors and lazy sequences that owns its memory."""

import copy
import pickle
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.client import Batch, BytesColumn, RaggedColumn
from headrace.client.wire.assembler import BatchEvent, StreamAssembler
from headrace.client.wire.buffers import aligned
from headrace.errors import BadArgumentError, ConfigurationError
from headrace.v1 import shard_service_pb2 as pb
from support.wire import SAMPLE_ID, X, batch_messages, start_message, token_at

NULLABLE = pb.Column(
    name="n",
    kind=pb.COLUMN_KIND_STRING,
    element_type=pb.ELEMENT_TYPE_UINT8,
    nullable=True,
)
BLOB = pb.Column(name="b", kind=pb.COLUMN_KIND_BYTES, element_type=pb.ELEMENT_TYPE_UINT8)
RAGGED = pb.Column(name="r", kind=pb.COLUMN_KIND_RAGGED, element_type=pb.ELEMENT_TYPE_FLOAT32)

needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


def _offsets(*ends: int) -> bytes:
    return np.array([0, *ends], dtype=np.int64).tobytes()


def _batch(columns: list[pb.Column], buffers: list[bytes], *, pad_count: int = 0) -> Batch:
    # Memory as the client allocates it: JAX copies what does not begin at 64 bytes.
    assembler = StreamAssembler(aligned, keep=None)
    assembler.feed(start_message(columns).SerializeToString())
    message = batch_messages(buffers, token=token_at(0, 3), sample_count=3)[0]
    message.batch.pad_count = pad_count
    message.batch.global_sample_count = 10
    event = assembler.feed(message.SerializeToString())
    assert isinstance(event, BatchEvent)
    return Batch.received(event, group_count=4)


IDS = np.array([7, 8, 9], dtype=np.int64)


def _strings() -> Batch:
    return _batch([NULLABLE], [b"\x01\x00\x01", _offsets(2, 2, 5), b"ab\xe2\x82\xac"])


def test_numbers_are_writable_tensors_of_their_dtype() -> None:
    """The loop may change a batch in place."""
    values = _batch([X], [IDS.tobytes()])["x"]
    assert isinstance(values, torch.Tensor)

    values += 1

    assert (torch.int64, [8, 9, 10]) == (values.dtype, values.tolist())


def test_sample_ids_stand_beside_the_columns() -> None:
    """They are an attribute, and no column."""
    batch = _batch([X, SAMPLE_ID], [IDS.tobytes(), IDS.tobytes()])

    assert batch.sample_ids is not None
    assert IDS.tolist() == batch.sample_ids.tolist()
    assert ["x"] == list(batch)


def test_sample_ids_are_none_unless_asked_for() -> None:
    """Nothing pretends to be an id."""
    assert _batch([X], [IDS.tobytes()]).sample_ids is None


def test_strings_are_decoded_when_touched_and_null_is_none() -> None:
    """A lazy sequence of str, with the validity beside it."""
    batch = _strings()
    strings, valid = batch.texts["n"], batch["n.valid"]

    assert ["ab", None, "€"] == list(strings)
    assert ["€", [None, "€"], 3] == [strings[-1], strings[1:], len(strings)]
    assert [True, False, True] == valid.tolist()


def test_an_index_past_the_batch_is_an_index_error() -> None:
    """A lazy sequence ends where its batch ends."""
    strings = _strings().texts["n"]

    for index in (3, -4):
        with pytest.raises(IndexError, match="of a batch of 3"):
            strings[index]


def test_bytes_and_ragged_rows_come_as_they_were() -> None:
    """Bytes are bytes, ragged rows are tensors that share the batch's memory."""
    floats = np.array([1.5, 2.5, 3.5], dtype=np.float32)
    batch = _batch([BLOB, RAGGED], [_offsets(1, 1, 3), b"xyz", _offsets(0, 2, 3), floats.tobytes()])
    blobs, rows = batch.blobs["b"], batch.ragged["r"]

    assert [b"x", b"", b"yz"] == list(blobs)
    assert [[], [1.5, 2.5], [3.5]] == [row.tolist() for row in rows if row is not None]
    assert rows[1] is not None
    assert rows[1].data_ptr() == rows.values.data_ptr()


def test_pads_are_marked_and_do_not_count_in_the_loss() -> None:
    """One of three samples is a repeat; the two others are a fifth of ten on four ranks."""
    batch = _batch([X], [IDS.tobytes()], pad_count=1)

    assert [False, False, True] == batch.is_pad.tolist()
    assert 2 * 4 / 10 == pytest.approx(batch.loss_scale)


def test_a_batch_survives_pickling() -> None:
    """Batches may travel between processes."""
    batch = pickle.loads(pickle.dumps(_batch([X], [IDS.tobytes()])))
    values = batch["x"]
    assert isinstance(values, torch.Tensor)

    assert (token_at(0, 3), IDS.tolist()) == (batch.token, values.tolist())


def test_changing_a_copy_leaves_the_batch_alone() -> None:
    """A copy may get other columns, as DataLoader does."""
    batch = _batch([X], [IDS.tobytes()])
    other = copy.copy(batch)
    other["y"] = torch.zeros(1)
    del other["x"]

    assert (["x"], ["y"]) == (list(batch), list(other))


def test_a_batch_moves_as_a_whole() -> None:
    """Tensors, ragged columns and ids are on the device, strings stay, and the batch is as it was.

    The device that has no memory is one everywhere, and no tensor is on it by chance.
    """
    columns = [X, NULLABLE, RAGGED, SAMPLE_ID]
    strings = [b"\x01\x00\x01", _offsets(2, 2, 5), b"ab\xe2\x82\xac"]
    ragged = [_offsets(1, 1, 3), np.arange(3, dtype=np.float32).tobytes()]
    batch = _batch(columns, [IDS.tobytes(), *strings, *ragged, IDS.tobytes()])

    moved = batch.to("meta", non_blocking=True)

    assert ["x", "n", "n.valid", "r"] == list(moved)
    x, row, ids = moved["x"], moved.ragged["r"], moved.sample_ids
    assert ids is not None
    devices = {tensor.device.type for tensor in (x, row.values, row.offsets, ids, moved.is_pad)}
    assert {"meta"} == devices
    assert ["ab", None, "€"] == list(moved["n"])
    assert (batch.token, batch.step) == (moved.token, moved.step)
    kept, again = batch["x"], batch.to("cpu")["x"]
    assert (IDS.tolist(), "cpu") == (kept.tolist(), batch.is_pad.device.type)
    assert kept.data_ptr() == again.data_ptr()


def _ragged() -> RaggedColumn:
    values = np.array([1.5, 2.5, 3.5], dtype=np.float32).tobytes()
    return _batch([RAGGED], [_offsets(2, 2, 3), values]).ragged["r"]


def test_ragged_rows_become_nested_without_a_copy() -> None:
    """A jagged tensor over the same values; rows as they were."""
    column = _ragged()
    nested = column.to_nested()
    column.values[0] = 9.0

    assert [[9.0, 2.5], [], [3.5]] == [row.tolist() for row in nested.unbind()]


@pytest.mark.parametrize(
    ("length", "padded"),
    [
        (None, [[1.5, 2.5], [-1, -1], [3.5, -1]]),
        (3, [[1.5, 2.5, -1], [-1, -1, -1], [3.5, -1, -1]]),
        (1, [[1.5], [-1], [3.5]]),
        (0, [[], [], []]),
    ],
)
def test_ragged_rows_are_padded_or_cut(length: int | None, padded: list[list[float]]) -> None:
    """To the longest, or to the length that is asked for."""
    assert padded == _ragged().to_padded(fill=-1, length=length).tolist()


@pytest.mark.parametrize(
    ("length", "multiple", "width"),
    [(None, 1, 2), (None, 4, 4), (None, 2, 2), (5, 4, 8), (0, 8, 0)],
)
def test_the_length_of_padded_rows_is_rounded_up(
    length: int | None, multiple: int, width: int
) -> None:
    """To a multiple, with nothing else changed."""
    padded = _ragged().to_padded(fill=-1, length=length, multiple_of=multiple)

    assert (3, width) == padded.shape
    assert _ragged().to_padded(fill=-1, length=width).tolist() == padded.tolist()


@pytest.mark.parametrize("multiple", [0, -1, 1.5, "8", None])
def test_a_multiple_that_is_none_is_refused(multiple: Any) -> None:
    """With its name."""
    with pytest.raises(BadArgumentError, match="multiple_of"):
        _ragged().to_padded(multiple_of=multiple)


def test_numpy_gets_all_columns() -> None:
    """Tensors share memory; strings, bytes and ragged rows are objects, null is None."""
    offsets, values = _offsets(1, 3, 3), np.arange(3, dtype=np.float32).tobytes()
    text = [np.array([1, 0, 1], dtype=np.bool_).tobytes(), _offsets(1, 1, 2), b"ab"]
    batch = _batch([X, NULLABLE, RAGGED], [IDS.tobytes(), *text, offsets, values])
    arrays = batch.to_numpy()
    x = batch["x"]
    assert isinstance(x, torch.Tensor)
    x[0] = 70

    assert [70, 8, 9] == arrays["x"].tolist()
    assert ["a", None, "b"] == arrays["n"].tolist()
    assert [[0.0], [1.0, 2.0], []] == [row.tolist() for row in arrays["r"]]
    assert [True, False, True] == arrays["n.valid"].tolist()


@pytest.mark.skipif(find_spec("jax") is not None, reason="JAX is installed")
def test_without_jax_it_says_what_to_install() -> None:
    """The adapter asks for nothing but the package."""
    with pytest.raises(ConfigurationError, match="pip install jax"):
        _batch([X], [IDS.tobytes()]).to_jax()


@needs_jax
def test_jax_shares_the_memory_of_tensors() -> None:
    """Numbers arrive through dlpack; what JAX has no type for stays lazy."""
    values = np.arange(3, dtype=np.float32)
    column = pb.Column(name="f", kind=pb.COLUMN_KIND_TENSOR, element_type=pb.ELEMENT_TYPE_FLOAT32)
    batch = _batch([column, X, BLOB], [values.tobytes(), IDS.tobytes(), _offsets(0, 0, 0), b""])
    arrays = batch.to_jax()
    f = batch["f"]
    assert isinstance(f, torch.Tensor)

    assert values.tolist() == arrays["f"].tolist()
    assert f.data_ptr() == arrays["f"].unsafe_buffer_pointer()
    assert IDS.tolist() == arrays["x"].tolist()
    assert isinstance(arrays["b"], BytesColumn)


@needs_jax
@pytest.mark.parametrize("numbers", [IDS << 40, (IDS << 40).astype("u8"), IDS * 1e300])
def test_a_number_that_jax_would_change_is_refused(numbers: NDArray[np.generic]) -> None:
    """JAX is set to 32 bits by default, and says nothing of the rest."""
    kinds = {"i": pb.ELEMENT_TYPE_INT64, "u": pb.ELEMENT_TYPE_UINT64, "f": pb.ELEMENT_TYPE_FLOAT64}
    column = pb.Column(name="x", kind=pb.COLUMN_KIND_TENSOR, element_type=kinds[numbers.dtype.kind])

    with pytest.raises(BadArgumentError, match="64 bits"):
        _batch([column], [numbers.tobytes()]).to_jax()
