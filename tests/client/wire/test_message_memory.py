"""Batches lie in the messages that they came in, and belong to the loop all the same."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.client import NumpyDataset, ReadOptions, RemoteDataset
from headrace.client.feeds.grpc_feed import encoded_messages, end_call
from headrace.client.options.access import Access
from headrace.client.wire.assembler import Allocate, BatchEvent, Keep, StreamAssembler
from headrace.client.wire.frames import memory_of, read_frames
from headrace.order import OrderSpec
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_rows
from support.running import server_of
from support.wire import batch_messages, start_message, token_at

BATCH = 32
OPTIONS = ReadOptions("rows", OrderSpec(seed=3, unit=BATCH), BATCH)
WIDE = pb.Column(
    name="x", kind=pb.COLUMN_KIND_TENSOR, element_type=pb.ELEMENT_TYPE_INT64, item_shape=[16]
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of 2 MiB in batches of 32 KiB."""
    url = str(tmp_path_factory.mktemp("messages") / "rows")
    write_rows(url, sample_count=2048, width=256)
    with server_of({"rows": url}) as server:
        yield server.address


def _message(*, padding: int = 0, row_count: int = 9) -> bytes:
    rows = np.arange(row_count * 16, dtype=np.int64)
    (message,) = batch_messages([rows.tobytes()], token=token_at(0, 4), sample_count=row_count)
    message.batch.head_padding = bytes(padding)
    return message.SerializeToString()


def _padded() -> bytes:
    """A batch whose payload begins at a multiple of 64 bytes in its message."""
    made = (_message(padding=padding) for padding in range(3, 70))
    return next(message for message in made if (len(message) - 9 * 128) % 64 == 0)


def _event(message: bytes, keep: Keep | None = memory_of) -> BatchEvent:
    assembler = StreamAssembler(lambda size: np.empty(size, np.uint8), keep=keep)
    assembler.feed(start_message([WIDE]).SerializeToString())
    event = assembler.feed(message)
    assert isinstance(event, BatchEvent)
    return event


def test_a_payload_stays_in_its_message() -> None:
    """What the loop writes is written there, and the message lives as long as a view of it."""
    message = _padded()
    shown = np.frombuffer(message, np.int64, 144, len(message) - 1152)
    values = _event(message).columns["x"].values
    alone = sys.getrefcount(message)

    values[:] = 7

    assert [7] * 144 == shown.tolist()
    part = values[1:3]
    del values
    assert alone == sys.getrefcount(message)
    del part
    assert alone - 1 == sys.getrefcount(message)


def test_a_payload_is_copied_where_it_must_not_stay() -> None:
    """As on its way to a device, whose buffers it has to pass."""
    message = _padded()

    event = _event(message, keep=None)

    assert not np.shares_memory(event.payload, np.frombuffer(message, np.uint8))
    assert list(range(144)) == event.columns["x"].values.reshape(-1).tolist()


@given(padding=st.integers(0, 40), row_count=st.integers(0, 9))
def test_columns_are_aligned_and_writable_whoever_sent_them(padding: int, row_count: int) -> None:
    """A server that does not pad, or pads otherwise, costs a copy and nothing else."""
    values = _event(_message(padding=padding, row_count=row_count)).columns["x"].values

    assert (True, True) == (values.flags.aligned, values.flags.writeable)
    assert np.arange(16 * row_count).tolist() == values.reshape(-1).tolist()


def test_batches_of_our_server_are_not_copied(address: str) -> None:
    """Batches of one message need no other memory than that."""

    def refuse(size: int) -> NDArray[np.uint8]:
        raise AssertionError(f"{size} bytes of memory are expected")

    assembler = StreamAssembler(refuse)
    request = OPTIONS.to_request(epoch=0, position=0, token=None)

    with Access().open_channel(address) as channel:
        messages = iter(encoded_messages(channel, "ReadBatches", request, ()))
        events = [assembler.feed(next(messages)) for _ in range(5)]
        end_call(channel, messages)

    assert 3 <= sum(isinstance(event, BatchEvent) for event in events)


def test_batches_of_one_message_lie_in_it_side_by_side(address: str) -> None:
    """None is copied, none shares a byte with another, and each may be written to."""
    wanted = OPTIONS.to_request(epoch=0, position=0, token=None)
    grouped = OPTIONS.to_request(epoch=0, position=0, token=None)
    grouped.max_group_bytes = 1 << 20

    def refuse(size: int) -> NDArray[np.uint8]:
        raise AssertionError(f"{size} bytes of memory are expected")

    together = 0
    with Access().open_channel(address) as channel:
        alone = _values(iter(encoded_messages(channel, "ReadBatches", wanted, ())), refuse)
        call = encoded_messages(channel, "ReadBatches", grouped, ())
        assembler, memories = StreamAssembler(refuse), []
        for message in itertools.islice(call, 8):
            events = [assembler.take(frame) for frame in read_frames(message)]
            batches = [event for event in events if isinstance(event, BatchEvent)]
            together = max(together, len(batches))
            for event in batches:
                assert next(alone) == event.columns["x"].values.tolist()
            for event in batches:
                event.payload[:] = 7
            memories += [event.payload for event in batches]
        end_call(channel, iter(call))

    assert together > 4
    assert not any(
        np.shares_memory(one, other) for one, other in itertools.combinations(memories, 2)
    )


def _values(call: Iterator[bytes], allocate: Allocate) -> Iterator[object]:
    assembler = StreamAssembler(allocate)
    for message in call:
        event = assembler.feed(message)
        if isinstance(event, BatchEvent):
            yield event.columns["x"].values.tolist()


def test_nobody_else_has_the_messages_of_a_stream(address: str) -> None:
    """What gRPC handed out it does not keep: a loop that writes to one disturbs nobody."""
    request = OPTIONS.to_request(epoch=0, position=0, token=None)
    fresh = bytes(100)

    with Access().open_channel(address) as channel:
        call = encoded_messages(channel, "ReadBatches", request, ())
        messages = iter(call)
        for _ in range(4):
            message = next(messages)
            assert sys.getrefcount(fresh) == sys.getrefcount(message)
        assert len(message) > 32 << 10
        end_call(channel, messages)


def test_nobody_else_has_the_message_of_a_single_batch(address: str) -> None:
    """Hedges get theirs as streams do."""
    request = pb.GetBatchRequest(
        dataset="rows", epoch_start=pb.EpochStart(), global_batch_size=BATCH, world_size=1
    )
    fresh = bytes(100)

    with Access().open_channel(address) as channel:
        ask = channel.unary_stream(
            "/headrace.v1.ShardService/GetBatch",
            request_serializer=pb.GetBatchRequest.SerializeToString,
            response_deserializer=bytes,
        )
        sizes = []
        for message in cast("Iterator[bytes]", ask(request, timeout=240)):
            sizes.append(len(message))
            assert sys.getrefcount(fresh) == sys.getrefcount(message)
    assert max(sizes) > 32 << 10


def _torch_rows(address: str) -> Iterator[NDArray[Any]]:
    with closing(RemoteDataset(address, "rows", batch_size=BATCH, seed=3)) as dataset:
        while True:
            for batch in dataset:
                # The array shares the tensor's memory.
                yield batch.to_numpy()["x"]


def _numpy_rows(address: str) -> Iterator[NDArray[Any]]:
    dataset = NumpyDataset(address, "rows", batch_size=BATCH, seed=3)
    while True:
        for arrays in dataset:
            yield arrays["x"]


@pytest.mark.parametrize("rows", [_torch_rows, _numpy_rows])
def test_a_batch_that_is_kept_never_changes(
    address: str, rows: Callable[[str], Iterator[NDArray[Any]]]
) -> None:
    """Written to, then left alone while some 200 more are read in each of two threads."""

    def keep_one(number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        batches = rows(address)
        kept = next(batches)
        kept += number
        wanted = kept.copy()
        for _ in range(200):
            next(batches)[:] = -1
        del batches
        gc.collect()
        return wanted, kept

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(keep_one, (1, 2)))

    assert all((wanted == kept).all() for wanted, kept in found)
    assert (found[0][0] + 1 == found[1][0]).all()
