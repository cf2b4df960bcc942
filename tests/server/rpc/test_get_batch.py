"""Tests of GetBatch, GetSamples and ExplainBatch against streams, samples and manifests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import cast

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.order import OrderSpec, Token, encode_token
from headrace.server.stream.get_batch_request import MAX_SAMPLE_IDS
from headrace.storage import Dataset, open_dataset
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.running import RICH_SAMPLES, Running
from support.served import (
    TIMEOUT_S,
    Transcript,
    epoch_request,
    failure_of,
    messages_of,
    read,
    stub_of,
    transcript,
)

_ORDER = pb.OrderSpec(seed=5, shuffle_samples=300)
_ENDS = (pb.END_MODE_DROP_LAST, pb.END_MODE_UNEVEN, pb.END_MODE_PAD)


def _batch_request(**fields: object) -> pb.GetBatchRequest:
    request = pb.GetBatchRequest(
        dataset="rich",
        order=_ORDER,
        global_batch_size=64,
        world_size=1,
        epoch_start=pb.EpochStart(),
        with_ids=True,
    )
    request.MergeFrom(pb.GetBatchRequest(**fields))  # type: ignore[arg-type]  # by name
    return request


def _samples_request(ids: list[int], **fields: object) -> pb.GetSamplesRequest:
    return pb.GetSamplesRequest(dataset="rich", sample_ids=ids, with_ids=True, **fields)  # type: ignore[arg-type]  # by name


def _get_batch(served: Running, request: pb.GetBatchRequest) -> Transcript:
    messages = stub_of(served.channel).GetBatch(request, timeout=TIMEOUT_S)
    return transcript(cast("Iterator[pb.ReadBatchesResponse]", messages))


def _get_samples(served: Running, request: pb.GetSamplesRequest) -> Transcript:
    messages = stub_of(served.channel).GetSamples(request, timeout=TIMEOUT_S)
    return transcript(cast("Iterator[pb.ReadBatchesResponse]", messages))


def _explain(served: Running, request: pb.GetBatchRequest) -> pb.ExplainBatchResponse:
    return stub_of(served.channel).ExplainBatch(
        pb.ExplainBatchRequest(batch=request), timeout=TIMEOUT_S
    )


def _epoch(served: Running, **fields: object) -> Transcript:
    request = epoch_request(dataset="rich", order=_ORDER, global_batch_size=64, with_ids=True)
    request.MergeFrom(pb.ReadBatchesRequest(**fields))  # type: ignore[arg-type]  # by name
    return read(served.channel, request)


@pytest.mark.parametrize("end", _ENDS)
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (2, 5)])
def test_any_batch_of_an_epoch_is_the_streams(
    served: Running, end: pb.EndMode, rank: int, world_size: int
) -> None:
    """Each batch asked for by its header's place has the bytes that the stream sent."""
    ranks = {"rank": rank, "world_size": world_size, "end": end}
    start = pb.EpochStart(epoch=2, position=7)
    whole = _epoch(served, columns=["number", "text"], epoch_start=start, **ranks)

    for batch in whole.batches[::4] + whole.batches[-1:]:
        place = pb.EpochStart(epoch=batch.header.epoch, position=batch.header.position)
        request = _batch_request(columns=["number", "text"], epoch_start=place, **ranks)
        seen = _get_batch(served, request)

        assert [batch.payload] == [one.payload for one in seen.batches]
        assert [] == seen.ends
        found = seen.batches[0].header
        for name in ("sample_count", "global_sample_count", "pad_count", "position", "epoch"):
            assert getattr(batch.header, name) == getattr(found, name)


def test_a_token_gets_the_batch_after_it(served: Running) -> None:
    """With a stream's token instead of a place, the header is the stream's too, token and all."""
    whole = _epoch(served)

    for index, token in enumerate(whole.tokens[:-1:3]):
        request = pb.GetBatchRequest(
            dataset="rich", resume_token=token, world_size=1, with_ids=True
        )
        seen = _get_batch(served, request)

        expected = whole.batches[3 * index + 1]
        assert [expected.header] == [batch.header for batch in seen.batches]
        assert [expected.payload] == [batch.payload for batch in seen.batches]


def test_a_batch_comes_in_chunks(served: Running) -> None:
    """A batch larger than a message comes as header and chunks, as a stream's does."""
    request = _batch_request(global_batch_size=RICH_SAMPLES, max_chunk_bytes=64 * 1024)

    (batch,) = _get_batch(served, request).batches

    assert len(batch.chunk_sizes) > 3
    assert 64 * 1024 == max(batch.chunk_sizes)


@pytest.mark.parametrize(
    "ids",
    [
        [0],
        [RICH_SAMPLES - 1],
        [5, 5, 5],
        list(range(RICH_SAMPLES)),
        np.random.default_rng(3).integers(0, RICH_SAMPLES, 700).tolist(),
    ],
)
def test_samples_come_by_id_in_the_order_asked(
    served: Running, rich: pa.Table, ids: list[int]
) -> None:
    """Every column of each sample arrives as it was written, repeats included."""
    (batch,) = _get_samples(served, _samples_request(ids)).batches

    values = batch.values
    assert ids == values.pop("headrace.sample_id")
    assert rich.take(ids).to_pydict() == values
    assert (len(ids), len(ids)) == (batch.header.sample_count, batch.header.global_sample_count)


def test_samples_have_the_columns_asked_for(served: Running, rich: pa.Table) -> None:
    """A projection of samples has its columns alone, in its order, and says what the dataset is."""
    request = pb.GetSamplesRequest(dataset="rich", sample_ids=[9, 3], columns=["text", "tiny"])

    seen = _get_samples(served, request)

    assert seen.start is not None
    assert RICH_SAMPLES == seen.start.dataset.sample_count
    assert not seen.start.HasField("order")
    assert [rich.select(["text", "tiny"]).take([9, 3]).to_pydict()] == [
        batch.values for batch in seen.batches
    ]


@pytest.mark.parametrize("end", _ENDS)
def test_an_explanation_says_where_each_sample_lies(
    served: Running, rich_url: str, end: pb.EndMode
) -> None:
    """Ids, blocks, shards and offsets are those of the stream's batch and of the manifest."""
    place = pb.EpochStart(position=64 * 15)
    if end == pb.END_MODE_DROP_LAST:
        place.position = 64 * 3
    request = _batch_request(epoch_start=place, end=end, rank=1, world_size=3)
    (batch,) = _get_batch(served, request).batches

    explained = _explain(served, request)

    assert batch.ids == list(explained.sample_ids)
    assert batch.header.resume_token == explained.header.resume_token
    assert batch.header.pad_count == explained.header.pad_count
    blocks = [block for shard in explained.shards for block in shard.blocks]
    assert sorted(block.block for block in blocks) == [block.block for block in blocks]
    rows = {row: id_ for b in blocks for row, id_ in zip(b.rows, b.sample_ids, strict=True)}
    assert batch.ids == [rows[row] for row in range(len(batch.ids))]
    with open_dataset(rich_url) as dataset:
        assert isinstance(dataset, Dataset)
        for shard, block in ((s, b) for s in explained.shards for b in s.blocks):
            found = dataset.block_place(block.block)
            first, last = dataset.block_sample_range(block.block)
            assert all(first <= sample_id < last for sample_id in block.sample_ids)
            assert (found.shard, found.offset) == (shard.name, block.offset)
            assert found.stored_bytes == block.stored_bytes
            ends = np.cumsum(dataset.shard_sample_counts)
            assert shard.shard == np.searchsorted(ends, first, side="right")


def test_a_rank_without_samples_is_explained_too(served: Running) -> None:
    """A rank that has nothing of a last batch gets a batch, and an explanation, of no rows."""
    place = pb.EpochStart(position=RICH_SAMPLES - 1)
    request = _batch_request(epoch_start=place, end=pb.END_MODE_UNEVEN, world_size=3)

    explained = _explain(served, request)
    (batch,) = _get_batch(served, request).batches

    assert ([], 0) == (list(explained.shards), explained.header.sample_count)
    assert [] == batch.ids


def test_an_explanation_says_what_is_in_memory(start: StartServer) -> None:
    """Nothing is cached before a batch was read, all of its blocks are afterwards."""
    running = start()
    request = _batch_request()

    before = _explain(running, request)
    _get_batch(running, request)
    after = _explain(running, request)

    assert {False} == _cached(before)
    assert {True} == _cached(after)


def _cached(explained: pb.ExplainBatchResponse) -> set[bool]:
    blocks = itertools.chain.from_iterable(shard.blocks for shard in explained.shards)
    return {block.is_cached for block in blocks}


_Call = Callable[[Running], object]


def _batch_with(**fields: object) -> _Call:
    return lambda served: _get_batch(served, _batch_request(**fields))


def _samples_with(ids: list[int], **fields: object) -> _Call:
    return lambda served: _get_samples(served, _samples_request(ids, **fields))


def _explain_with(**fields: object) -> _Call:
    return lambda served: _explain(served, _batch_request(**fields))


_BAD = "INVALID_ARGUMENT", "BAD_COORDINATES"
_PAST_END = "OUT_OF_RANGE", "POSITION_PAST_END"
_CHANGED = "FAILED_PRECONDITION", "TOKEN_DATASET_CHANGED"


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (_batch_with(epoch_start=pb.EpochStart(position=RICH_SAMPLES)), _PAST_END),
        (_batch_with(epoch_start=pb.EpochStart(position=RICH_SAMPLES + 1)), _PAST_END),
        (_batch_with(epoch_start=pb.EpochStart(position=RICH_SAMPLES - 63)), _PAST_END),
        (_batch_with(epoch_start=pb.EpochStart(position=-1)), _BAD),
        (_batch_with(epoch_start=pb.EpochStart(epoch=1 << 62)), _BAD),
        (_batch_with(global_batch_size=1 << 40), _BAD),
        (_batch_with(rank=1), _BAD),
        (_batch_with(world_size=1 << 30), _BAD),
        (_batch_with(max_chunk_bytes=1), _BAD),
        (_batch_with(resume_token=b"none"), ("INVALID_ARGUMENT", "TOKEN_MALFORMED")),
        (_batch_with(columns=["none"]), ("INVALID_ARGUMENT", "COLUMN_NOT_FOUND")),
        (_batch_with(fingerprint="ab" * 16), _CHANGED),
        (_batch_with(dataset="none"), ("NOT_FOUND", "DATASET_NOT_FOUND")),
        (_samples_with([]), _BAD),
        (_samples_with([-1]), _BAD),
        (_samples_with([0, RICH_SAMPLES]), _BAD),
        (_samples_with([(1 << 63) - 1]), _BAD),
        (_samples_with([-(1 << 63)]), _BAD),
        (_samples_with([0] * (MAX_SAMPLE_IDS + 1)), _BAD),
        (_samples_with([0], max_chunk_bytes=-1), _BAD),
        (_samples_with([0], columns=["none"]), ("INVALID_ARGUMENT", "COLUMN_NOT_FOUND")),
        (_samples_with([0], fingerprint="ab" * 16), _CHANGED),
        (_explain_with(dataset="none"), ("NOT_FOUND", "DATASET_NOT_FOUND")),
        (_explain_with(epoch_start=pb.EpochStart(position=RICH_SAMPLES)), _PAST_END),
        (_explain_with(global_batch_size=140_000, end=pb.END_MODE_PAD), _BAD),
    ],
)
def test_what_cannot_be_is_refused(served: Running, call: _Call, wanted: tuple[str, str]) -> None:
    """Hostile and mistaken requests fail by the table, and the server goes on."""
    with pytest.raises(grpc.RpcError) as caught:
        call(served)

    code, info = failure_of(caught.value)
    assert wanted == (code.name, info.reason)


def test_an_explanation_without_a_batch_is_refused(served: Running) -> None:
    """An empty request names no dataset."""
    with pytest.raises(grpc.RpcError) as caught:
        stub_of(served.channel).ExplainBatch(pb.ExplainBatchRequest(), timeout=TIMEOUT_S)

    assert grpc.StatusCode.INVALID_ARGUMENT == caught.value.code()


def test_a_token_at_the_end_has_no_batch(served: Running) -> None:
    """A token of another batch size whose rest is too short for one is POSITION_PAST_END."""
    dataset = stub_of(served.channel).GetDataset(
        pb.GetDatasetRequest(name="rich"), timeout=TIMEOUT_S
    )
    token = Token(
        fingerprint=dataset.dataset.fingerprint,
        spec=OrderSpec(seed=3),
        epoch=0,
        position=RICH_SAMPLES - 10,
        global_batch_size=64,
        step=1,
        sample_count=64,
    )
    request = pb.GetBatchRequest(dataset="rich", resume_token=encode_token(token), world_size=1)

    with pytest.raises(grpc.RpcError) as caught:
        _get_batch(served, request)

    assert grpc.StatusCode.OUT_OF_RANGE == caught.value.code()


def test_single_calls_count_as_streams(start: StartServer) -> None:
    """A server that has all the streams it may refuses single batches too, with a time to wait."""
    running = start(max_streams=1)
    stream = messages_of(
        running.channel,
        pb.ReadBatchesRequest(
            dataset="rich", global_batch_size=2, world_size=1, epoch_start=pb.EpochStart()
        ),
    )
    next(stream)

    with pytest.raises(grpc.RpcError) as caught:
        _get_samples(running, _samples_request([1]))

    stream.cancel()  # type: ignore[attr-defined]  # a call
    assert "STREAM_LIMIT" == failure_of(caught.value)[1].reason
