"""Tests of batches that are announced together, from slots that the test itself writes."""

from __future__ import annotations

import copy
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.client import Batch
from headrace.client.feeds.transport import TransportState
from headrace.client.feeds.wait_times import HopClock
from headrace.client.transports.ring.batch import SlotEvent
from headrace.client.transports.ring.feed import RingFeed
from headrace.client.transports.ring.memory import RingMemory
from headrace.client.wire.assembler import BatchEvent, StreamAssembler
from headrace.errors import StreamCorruptError
from headrace.ring import RecordKind, RecordReader, payload_start, record, seal_slot
from headrace.v1 import shard_service_pb2 as pb

_RING, _SLOT, _WIDTH = 1 << 20, 4096, 8


class _NoCall:
    """A call that says nothing and has ended."""

    target = "unix:nowhere"

    def next_message(self) -> None:
        """Have no message."""


@dataclass(frozen=True, slots=True)
class _Ring:
    """Both sides of a ring."""

    feed: RingFeed
    memory: RingMemory
    assembler: StreamAssembler
    server: socket.socket
    slots: NDArray[np.uint8]

    def write(self, number: int, rows: int = 4, *, layout: int = 1) -> bytes:
        """Fill the slot with its number and return its announcement."""
        values = np.full((rows, _WIDTH), number, np.float32)
        return self.seal(number, rows, [values.tobytes()], layout=layout)

    def write_texts(self, number: int, texts: list[str], *, layout: int = 1) -> bytes:
        """Fill the slot with texts instead."""
        offsets = np.cumsum([0, *(len(text) for text in texts)], dtype=np.int64)
        return self.write_values(number, offsets.tolist(), "".join(texts), layout=layout)

    def write_values(
        self, number: int, offsets: list[int], values: str, *, layout: int = 1
    ) -> bytes:
        """Fill the slot with texts that are cut there."""
        buffers = [np.array(offsets, np.int64).tobytes(), values.encode()]
        return self.seal(number, len(offsets) - 1, buffers, layout=layout)

    def seal(
        self,
        number: int,
        rows: int,
        buffers: list[bytes],
        *,
        layout: int,
        lengths: list[int] | None = None,
    ) -> bytes:
        """Fill the slot with buffers, whose lengths the header may give otherwise."""
        padded = [buffer + bytes(-len(buffer) % 64) for buffer in buffers[:-1]]
        payload = b"".join([*padded, buffers[-1]])
        header = pb.BatchHeader(
            step=number,
            sample_count=rows,
            resume_token=b"token %d" % number,
            payload_bytes=len(payload),
            buffer_bytes=[len(buffer) for buffer in buffers] if lengths is None else lengths,
        )
        message = pb.ReadBatchesResponse(batch=header).SerializeToString()
        start = payload_start(len(message))
        slot = self.slots[number * _SLOT : number * _SLOT + start + len(payload)]
        slot[start:] = np.frombuffer(payload, np.uint8)
        seal_slot(
            slot,
            generation=number,
            message=message,
            start=start,
            payload_bytes=len(payload),
            layout=layout,
        )
        return record(RecordKind.SLOT, number * _SLOT, number)

    def released(self) -> list[int]:
        """Return the generations that the client has given back since the last time."""
        self.memory.flush()
        try:
            said = self.server.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        return [one.generation for one in RecordReader().feed(said)]


@pytest.fixture
def ring() -> Iterator[_Ring]:
    """A ring whose stream has begun, with one column of floats."""
    column = pb.Column(
        name="x",
        kind=pb.COLUMN_KIND_TENSOR,
        element_type=pb.ELEMENT_TYPE_FLOAT32,
        item_shape=[_WIDTH],
    )
    with _ring_of(column) as ring:
        yield ring


@pytest.fixture
def texts() -> Iterator[_Ring]:
    """A ring whose stream has begun, with one column of strings."""
    column = pb.Column(name="x", kind=pb.COLUMN_KIND_STRING, element_type=pb.ELEMENT_TYPE_UINT8)
    with _ring_of(column) as ring:
        yield ring


@contextmanager
def _ring_of(*columns: pb.Column) -> Iterator[_Ring]:
    ours, theirs = socket.socketpair()
    fd = os.memfd_create("headrace-ring")
    os.ftruncate(fd, _RING)
    memory = RingMemory(fd, _RING, ours)
    os.close(fd)
    assembler = StreamAssembler(lambda size: np.empty(size, np.uint8))
    start = pb.ReadBatchesResponse(start=pb.StreamStart(columns=columns))
    assembler.feed(start.SerializeToString())
    feed = RingFeed(
        _NoCall(),  # type: ignore[arg-type] # all of a call that is used here
        memory,
        ours,
        assembler=assembler,
        clock=HopClock(),
        transport=TransportState(),
        silence_s=60,
        takes_runs=True,
    )
    with ours, theirs:
        yield _Ring(feed, memory, assembler, theirs, memory.array)


def _batches(events: Iterator[object]) -> list[Batch]:
    """Return the batches of the next event, in the order in which a loop gets them."""
    last = next(events)
    assert isinstance(last, BatchEvent)
    ahead, last.ahead = last.ahead or (), None
    return [Batch.received(event, group_count=1) for event in (*ahead, last)]


def _seen(batches: list[Batch]) -> list[tuple[int, int, bytes, float]]:
    return [(b.step, b.sample_count, b.token, _x(b).mean().item()) for b in batches]


def _x(batch: Batch) -> torch.Tensor:
    x = batch["x"]
    assert isinstance(x, torch.Tensor)
    assert (batch.sample_count, _WIDTH) == tuple(x.shape)
    return x


def test_batches_that_are_announced_together_come_together(ring: _Ring) -> None:
    """In order, each with its own header and memory, and counted for the end of the epoch."""
    ring.server.send(b"".join(ring.write(number) for number in range(1, 6)))
    batches = _batches(iter(ring.feed.events()))
    end = pb.EpochEnd(batch_count=5, sample_count=20, resume_token=b"end")

    assert [(n, 4, b"token %d" % n, float(n)) for n in range(1, 6)] == _seen(batches)
    assert ring.assembler.feed(pb.ReadBatchesResponse(epoch_end=end).SerializeToString())


@pytest.mark.parametrize("layouts", [(1, 1, 2, 2, 3), (0, 0, 0, 0, 0), (1, 1, 1, 1, 1)])
def test_batches_are_cut_as_they_are_laid_out(ring: _Ring, layouts: tuple[int, ...]) -> None:
    """Another number, no number, and other lengths under the same number: all are read again."""
    rows = (4, 4, 7, 7, 1)
    said = [
        ring.write(at + 1, count, layout=layout)
        for at, (count, layout) in enumerate(zip(rows, layouts, strict=True))
    ]
    ring.server.send(b"".join(said))
    batches = _batches(iter(ring.feed.events()))

    assert list(rows) == [count for _, count, _, _ in _seen(batches)]
    assert [1.0, 2.0, 3.0, 4.0, 5.0] == [mean for _, _, _, mean in _seen(batches)]


def test_texts_of_equal_lengths_in_sum_are_cut_each_at_its_own_places(texts: _Ring) -> None:
    """A number says nothing of where a batch's strings end; other sums are read again."""
    wanted = [["a", "bcd"], ["ab", "cd"], ["abcd", ""], ["", "wxyz"], ["longer", "strings"]]
    numbers = [1, 1, 1, 1, 2]
    said = [
        texts.write_texts(at + 1, strings, layout=numbers[at]) for at, strings in enumerate(wanted)
    ]
    texts.server.send(b"".join(said))
    batches = _batches(iter(texts.feed.events()))

    assert wanted == [list(batch["x"]) for batch in batches]
    assert [[len(text) for text in strings] for strings in wanted] == [
        batch.texts["x"].offsets.diff().tolist() for batch in batches
    ]


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("offsets", [[1, 2, 4], [0, 3, 3], [0, 5, 4]])
def test_texts_that_are_cut_outside_are_refused(
    texts: _Ring, offsets: list[int], layout: int
) -> None:
    """Also in a batch whose number says that it is like those before, or one of other lengths."""
    said = [texts.write_texts(number, ["ab", "cd"]) for number in (1, 2, 3)]
    texts.server.send(b"".join([*said, texts.write_values(4, offsets, "abcd", layout=layout)]))
    events = iter(texts.feed.events())

    assert 3 == len(_batches(events))
    with pytest.raises(StreamCorruptError, match="column 'x' has"):
        next(events)


@dataclass(frozen=True, slots=True)
class _Row:
    """A sample of the columns below."""

    number: int
    text: str | None
    blob: bytes
    parts: list[int]


_MIXED = (
    pb.Column(name="number", kind=pb.COLUMN_KIND_TENSOR, element_type=pb.ELEMENT_TYPE_INT32),
    pb.Column(
        name="text",
        kind=pb.COLUMN_KIND_STRING,
        element_type=pb.ELEMENT_TYPE_UINT8,
        nullable=True,
    ),
    pb.Column(name="blob", kind=pb.COLUMN_KIND_BYTES, element_type=pb.ELEMENT_TYPE_UINT8),
    pb.Column(name="again", kind=pb.COLUMN_KIND_TENSOR, element_type=pb.ELEMENT_TYPE_INT32),
    pb.Column(name="parts", kind=pb.COLUMN_KIND_RAGGED, element_type=pb.ELEMENT_TYPE_INT16),
)
_ROWS = st.builds(
    _Row,
    number=st.integers(-9, 9),
    text=st.none() | st.text("aé", max_size=4),
    blob=st.binary(max_size=4),
    parts=st.lists(st.integers(-9, 9), max_size=4),
)


def _buffers(rows: list[_Row]) -> list[bytes]:
    """Return the buffers of a payload, as docs/protocol.md has them."""
    numbers = np.array([row.number for row in rows], np.int32).tobytes()
    is_there = np.array([row.text is not None for row in rows], np.bool_).tobytes()
    texts = [(row.text or "").encode() for row in rows]
    parts = [np.array(row.parts, np.int16).tobytes() for row in rows]
    return [
        numbers,
        is_there,
        *(_offsets(texts, 1), b"".join(texts)),
        *(_offsets([row.blob for row in rows], 1), b"".join(row.blob for row in rows)),
        numbers,
        *(_offsets(parts, 2), b"".join(parts)),
    ]


def _offsets(pieces: list[bytes], item_bytes: int) -> bytes:
    ends = np.cumsum([0, *(len(piece) // item_bytes for piece in pieces)], dtype=np.int64)
    return ends.tobytes()


def _rows_of(batch: Batch) -> list[_Row]:
    values = batch.to_numpy()
    assert ["number", "text", "text.valid", "blob", "again", "parts"] == list(batch)
    assert values["number"].tolist() == values["again"].tolist()
    assert values["text.valid"].tolist() == [text is not None for text in batch["text"]]
    columns = (values["number"].tolist(), batch["text"], batch["blob"], values["parts"])
    return [_Row(*row[:3], row[3].tolist()) for row in zip(*columns, strict=True)]


@given(
    batches=st.lists(
        st.lists(_ROWS, min_size=2, max_size=3) | st.lists(_ROWS, max_size=1),
        min_size=3,
        max_size=8,
    ),
    travels=st.sampled_from([copy.copy, copy.deepcopy, lambda batch: batch]),
)
@settings(max_examples=60, deadline=None)
def test_columns_of_any_lengths_hold_what_was_written(
    batches: list[list[_Row]], travels: Callable[[Batch], Batch]
) -> None:
    """Whichever batches are like the last one, in counts or lengths, wherever columns lie."""
    with _ring_of(*_MIXED) as ring:
        said, number, last = [], 0, None
        for at, rows in enumerate(batches):
            buffers = _buffers(rows)
            lengths = [len(buffer) for buffer in buffers]
            number, last = number + (lengths != last), lengths
            said.append(ring.seal(at + 1, len(rows), buffers, layout=number))
        ring.server.send(b"".join(said))
        found = _batches(iter(ring.feed.events()))

        assert batches == [_rows_of(travels(batch)) for batch in found]
        assert [len(rows) for rows in batches] == [batch.sample_count for batch in found]
        assert [b"token %d" % (at + 1) for at in range(len(batches))] == [b.token for b in found]
        end = pb.EpochEnd(batch_count=len(batches), sample_count=sum(map(len, batches)))
        assert ring.assembler.feed(pb.ReadBatchesResponse(epoch_end=end).SerializeToString())


def test_texts_of_other_lengths_are_not_looked_at_before_the_loop_looks(texts: _Ring) -> None:
    """From the third batch on, whatever its number; so are those after one of another count."""
    wanted = [["a"], ["bc", "d"], ["ef", ""], ["g", "hijk"], ["l"], ["", "mn"], ["opq", "r"]]
    texts.server.send(
        b"".join(texts.write_texts(at + 1, each, layout=at + 1) for at, each in enumerate(wanted))
    )
    last = next(iter(texts.feed.events()))
    assert isinstance(last, BatchEvent)
    events = [*(last.ahead or ()), last]

    assert wanted == [list(Batch.received(event, group_count=1)["x"]) for event in events]
    assert [False, False, True, True, False, False, True] == [
        isinstance(event, SlotEvent) for event in events
    ]


@pytest.mark.parametrize(
    "lengths", [[24], [24, 4, 0], [16, 4], [24, 5], [24, -4], [24, 4 << 40], []]
)
def test_lengths_that_do_not_fit_are_refused(texts: _Ring, lengths: list[int]) -> None:
    """In the header of a batch with a number of its own, though its columns are those of others."""
    said = [texts.write_texts(number, ["ab", "cd"], layout=number) for number in (1, 2, 3)]
    offsets, values = np.array([0, 2, 4], np.int64).tobytes(), b"abcd"
    said.append(texts.seal(4, 2, [offsets, values], layout=4, lengths=lengths))
    texts.server.send(b"".join(said))
    events = iter(texts.feed.events())

    assert 3 == len(_batches(events))
    with pytest.raises(StreamCorruptError, match="buffer"):
        next(events)


@pytest.mark.parametrize("kept", ["column", "values", "offsets", "copy"])
def test_what_is_kept_of_a_column_of_texts_keeps_its_slot(texts: _Ring, kept: str) -> None:
    """What is decoded later must be there then; and nothing else keeps it."""
    texts.server.send(b"".join(texts.write_texts(number, ["ab", "cd"]) for number in (1, 2, 3)))
    events = iter(texts.feed.events())
    batches = _batches(events)
    column: Any = batches[2]["x"]
    keep = column if kept == "column" else copy.copy(column)
    if kept in ("values", "offsets"):
        keep = getattr(keep, kept)
    travelled = pickle.loads(pickle.dumps(batches[1]["x"]))
    texts.server.shutdown(socket.SHUT_WR)
    assert next(events, None) is None
    del batches, column

    assert [1, 2] == sorted(texts.released())
    assert ["ab", "cd"] == list(travelled)
    wanted = {"values": [*b"abcd"], "offsets": [0, 2, 4]}.get(kept, ["ab", "cd"])
    assert wanted == [*keep]
    del keep
    assert [3] == texts.released()


def test_what_came_before_a_torn_slot_comes_out(ring: _Ring) -> None:
    """Then the stream is corrupt."""
    said = b"".join(ring.write(number) for number in range(1, 5))
    ring.slots[3 * _SLOT + 70] ^= 1
    ring.server.send(said)
    events = iter(ring.feed.events())
    batches = _batches(events)

    assert [1, 2] == [step for step, _, _, _ in _seen(batches)]
    with pytest.raises(StreamCorruptError, match="checksum"):
        next(events)


@pytest.mark.parametrize("kept", ["batch", "tensor", "slice", "array", "values", "copy"])
def test_a_slot_is_given_back_when_nothing_of_it_is_left(ring: _Ring, kept: str) -> None:
    """Whatever a loop keeps of a batch keeps its slot, and no other; and then it comes free."""
    ring.server.send(b"".join(ring.write(number) for number in range(1, 5)))
    events = iter(ring.feed.events())
    batches = _batches(events)
    keep = _kept(batches[2], kept)
    _x(batches[0])
    ring.server.shutdown(socket.SHUT_WR)
    assert next(events, None) is None
    del batches

    assert [1, 2, 4] == sorted(ring.released())
    del keep
    assert [3] == ring.released()


def _kept(batch: Batch, what: str) -> object:
    """Return what a loop may keep of a batch."""
    ways: dict[str, Callable[[], object]] = {
        "batch": lambda: batch,
        "tensor": lambda: _x(batch),
        "slice": lambda: _x(batch)[1:, 2:][1:],
        "array": lambda: batch.to_numpy()["x"][1:][1:],
        "values": lambda: list(batch.values()),
        "copy": lambda: copy.copy(batch),
    }
    return ways[what]()
