"""Readers that split the batches of one rank, over a server that breaks every stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from headrace.client import BatchEvent, BatchReader, Deadlines, EpochEndEvent, Place, ReadOptions
from headrace.client.options.settings import Backoff
from headrace.order import OrderSpec, decode_token
from headrace.v1 import shard_service_pb2 as pb
from support.scripted_server import Script, fail, scripted_server
from support.wire import epoch_messages, start_message, token_at

SAMPLES, EPOCHS = 28, 3


def _wanted(request: pb.ReadBatchesRequest) -> Iterator[pb.ReadBatchesResponse]:
    epoch, position = request.epoch_start.epoch, request.epoch_start.position
    if request.WhichOneof("start") == "resume_token":
        token = decode_token(request.resume_token)
        epoch, position = token.epoch, token.position
    yield start_message()
    for number in range(epoch, epoch + request.epoch_count):
        *batches, _ = epoch_messages(number, position, sample_count=SAMPLES)
        mine = batches[request.batch_offset :: request.batch_stride]
        yield from mine
        token_after = token_at(number + 1, 0)
        yield pb.ReadBatchesResponse(
            epoch_end=pb.EpochEnd(
                epoch=number,
                batch_count=len(mine),
                sample_count=4 * len(mine),
                resume_token=token_after,
            )
        )
        position = 0


def _breaks_after(message_count: int) -> Script:
    def script(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        messages = list(_wanted(request))
        yield from messages[:message_count]
        if message_count < len(messages):
            fail(context, grpc.StatusCode.UNAVAILABLE, "REBALANCE", retry_after_s=0.001)

    return script


@pytest.mark.parametrize("stride", [1, 2, 3, 9])
@pytest.mark.parametrize("message_count", [2, 3, 100])
def test_a_share_stays_a_share_over_broken_streams(stride: int, message_count: int) -> None:
    """Of each epoch every reader gets its own batches, wherever its streams start over."""
    with scripted_server(_breaks_after(message_count)) as server:
        shares = [_read(server.address, stride, offset) for offset in range(stride)]

    ends = list(range(EPOCHS))
    assert [ends] * stride == [share[1] for share in shares]
    expected = [(epoch, 4 * index) for epoch in range(EPOCHS) for index in range(7)]
    assert expected == _in_turn(shares)


def test_a_share_may_begin_between_two_of_its_batches() -> None:
    """Of five batches from position 8 on, with two to skip, every third is wanted."""
    with scripted_server(_breaks_after(100)) as server:
        batches, _ = _read(server.address, 3, 0, place=Place(0, 8, offset=2))

    assert [(0, 16), (1, 0), (1, 12), (1, 24), (2, 0), (2, 12), (2, 24)] == batches


Read = tuple[list[tuple[int, int]], list[int]]


def _read(address: str, stride: int, offset: int, *, place: Place | None = None) -> Read:
    options = ReadOptions(
        "d", OrderSpec(), 4, end_epoch=EPOCHS, batch_stride=stride, batch_offset=offset
    )
    reader = BatchReader(
        [address],
        options,
        place=place or Place(),
        deadlines=Deadlines(connect_s=10, silence_s=10, give_up_s=10),
        allocate=lambda size: np.empty(size, dtype=np.uint8),
        backoff=Backoff(first_s=0.001, most_s=0.001),
    )
    events = list(reader.events())
    batches = [(e.header.epoch, e.header.position) for e in events if isinstance(e, BatchEvent)]
    return batches, [event.epoch for event in events if isinstance(event, EpochEndEvent)]


def _in_turn(shares: list[Read]) -> list[tuple[int, int]]:
    found = []
    for epoch in range(EPOCHS):
        mine = [[batch for batch in batches if batch[0] == epoch] for batches, _ in shares]
        turns = itertools.zip_longest(*mine)
        found += [batch for turn in turns for batch in turn if batch is not None]
    return found
