"""Tests of batches that are announced together, from slots that the test itself writes."""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.client import Batch
from headrace.client._assembler import BatchEvent, StreamAssembler
from headrace.client._hops import HopClock
from headrace.client._ring_feed import RingFeed
from headrace.client._ring_memory import RingMemory
from headrace.client._transport import Transport
from headrace.errors import StreamCorruptError
from headrace.ring import RecordKind, RecordReader, payload_begin, record, seal_slot
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
        return self._seal(number, rows, [values.tobytes()], layout=layout)

    def write_texts(self, number: int, texts: list[str], *, layout: int = 1) -> bytes:
        """Fill the slot with texts instead."""
        offsets = np.cumsum([0, *(len(text) for text in texts)], dtype=np.int64)
        return self.write_values(number, offsets.tolist(), "".join(texts), layout=layout)

    def write_values(
        self, number: int, offsets: list[int], values: str, *, layout: int = 1
    ) -> bytes:
        """Fill the slot with texts that are cut there."""
        buffers = [np.array(offsets, np.int64).tobytes(), values.encode()]
        return self._seal(number, len(offsets) - 1, buffers, layout=layout)

    def _seal(self, number: int, rows: int, buffers: list[bytes], *, layout: int) -> bytes:
        padded = [buffer + bytes(-len(buffer) % 64) for buffer in buffers[:-1]]
        payload = b"".join([*padded, buffers[-1]])
        header = pb.BatchHeader(
            step=number,
            sample_count=rows,
            resume_token=b"token %d" % number,
            payload_bytes=len(payload),
            buffer_bytes=[len(buffer) for buffer in buffers],
        )
        message = pb.ReadBatchesResponse(batch=header).SerializeToString()
        begin = payload_begin(len(message))
        slot = self.slots[number * _SLOT : number * _SLOT + begin + len(payload)]
        slot[begin:] = np.frombuffer(payload, np.uint8)
        seal_slot(
            slot,
            generation=number,
            message=message,
            begin=begin,
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
def _ring_of(column: pb.Column) -> Iterator[_Ring]:
    ours, theirs = socket.socketpair()
    fd = os.memfd_create("headrace-ring")
    os.ftruncate(fd, _RING)
    memory = RingMemory(fd, _RING, ours)
    os.close(fd)
    assembler = StreamAssembler(lambda size: np.empty(size, np.uint8))
    start = pb.ReadBatchesResponse(start=pb.StreamStart(columns=[column]))
    assembler.feed(start.SerializeToString())
    feed = RingFeed(
        _NoCall(),  # type: ignore[arg-type] # all of a call that is used here
        memory,
        ours,
        assembler=assembler,
        clock=HopClock(),
        transport=Transport(),
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
    return [Batch(event, group_count=1) for event in (*ahead, last)]


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
    """Another number, no number, and other lengths under the same number: all are read anew."""
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
    """A number says nothing of where a batch's strings end; other sums are read anew."""
    wanted = [["a", "bcd"], ["ab", "cd"], ["abcd", ""], ["", "wxyz"], ["longer", "strings"]]
    numbers = [1, 1, 1, 1, 2]
    said = [
        texts.write_texts(at + 1, strings, layout=numbers[at]) for at, strings in enumerate(wanted)
    ]
    texts.server.send(b"".join(said))
    batches = _batches(iter(texts.feed.events()))

    assert wanted == [list(batch["x"]) for batch in batches]
    assert [[len(text) for text in strings] for strings in wanted] == [
        batch["x"].offsets.diff().tolist()  # type: ignore[union-attr] # a column of strings
        for batch in batches
    ]


@pytest.mark.parametrize("offsets", [[1, 2, 4], [0, 3, 3], [0, 5, 4]])
def test_texts_that_are_cut_outside_are_refused(texts: _Ring, offsets: list[int]) -> None:
    """Also in a batch whose number says that it is like those before."""
    said = [texts.write_texts(number, ["ab", "cd"]) for number in (1, 2, 3)]
    texts.server.send(b"".join([*said, texts.write_values(4, offsets, "abcd")]))
    events = iter(texts.feed.events())

    assert 3 == len(_batches(events))
    with pytest.raises(StreamCorruptError, match="column 'x' has"):
        next(events)


def test_a_column_of_texts_keeps_its_slot(texts: _Ring) -> None:
    """What is decoded later must be there then."""
    texts.server.send(b"".join(texts.write_texts(number, ["ab", "cd"]) for number in (1, 2, 3)))
    events = iter(texts.feed.events())
    batches = _batches(events)
    kept = batches[2]["x"]
    texts.server.shutdown(socket.SHUT_WR)
    assert next(events, None) is None
    del batches

    assert [1, 2] == sorted(texts.released())
    assert ["ab", "cd"] == list(kept)
    del kept
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
