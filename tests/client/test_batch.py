"""A batch is a mapping of tensors and lazy sequences that owns its memory."""

import copy
import pickle

import numpy as np
import pytest
import torch

from headrace.client import Batch, BytesColumn, RaggedColumn, StringColumn
from headrace.client._assembler import BatchEvent, StreamAssembler
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


def _offsets(*ends: int) -> bytes:
    return np.array([0, *ends], dtype=np.int64).tobytes()


def _batch(columns: list[pb.Column], buffers: list[bytes], *, pad_count: int = 0) -> Batch:
    assembler = StreamAssembler(lambda size: np.empty(size, dtype=np.uint8))
    assembler.feed(start_message(columns))
    message = batch_messages(buffers, token=token_at(0, 3), sample_count=3)[0]
    message.batch.pad_count = pad_count
    message.batch.global_sample_count = 10
    event = assembler.feed(message)
    assert isinstance(event, BatchEvent)
    return Batch(event, group_count=4)


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
    strings, valid = batch["n"], batch["n.valid"]
    assert isinstance(strings, StringColumn)
    assert isinstance(valid, torch.Tensor)

    assert ["ab", None, "€"] == list(strings)
    assert ["€", [None, "€"], 3] == [strings[-1], strings[1:], len(strings)]
    assert [True, False, True] == valid.tolist()


def test_an_index_past_the_batch_is_an_index_error() -> None:
    """A lazy sequence ends where its batch ends."""
    strings = _strings()["n"]
    assert isinstance(strings, StringColumn)

    for index in (3, -4):
        with pytest.raises(IndexError, match="of a batch of 3"):
            strings[index]


def test_bytes_and_ragged_rows_come_as_they_were() -> None:
    """Bytes are bytes, ragged rows are tensors that share the batch's memory."""
    floats = np.array([1.5, 2.5, 3.5], dtype=np.float32)
    batch = _batch([BLOB, RAGGED], [_offsets(1, 1, 3), b"xyz", _offsets(0, 2, 3), floats.tobytes()])
    blobs, rows = batch["b"], batch["r"]
    assert isinstance(blobs, BytesColumn)
    assert isinstance(rows, RaggedColumn)

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
