"""Tests of stores that fail: no wrong sample is sent, and nothing bad stays in the cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import DrainingError, ShardCorruptError, StoreUnavailableError
from headrace.server.cache.block_cache import BlockCache
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.stream.batch_stream import BatchStream, StreamLimits
from headrace.server.stream.stage_plugs import NO_STAGES
from headrace.server.stream.stream_setup import stream_contents
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.stream_counts import StreamTally
from headrace.storage import Dataset, OpenDataset, open_dataset
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.running import RICH_SAMPLES
from support.served import (
    epoch_request,
    failure_of,
    messages_of,
    read,
    read_until_failure,
    transcript,
)

_REQUEST = epoch_request(
    dataset="rich",
    order=pb.OrderSpec(seed=5),
    global_batch_size=100,
    with_ids=True,
    columns=["number", "text"],
)


def _damage(url: str, block: int) -> tuple[Path, int, bytes]:
    """Flip one byte in the middle of a block; return how to undo it."""
    with open_dataset(url) as dataset:
        assert isinstance(dataset, Dataset)
        place = dataset.block_place(block)
    path, at = Path(url) / place.shard, place.offset + place.stored_bytes // 2
    content = bytearray(path.read_bytes())
    before = bytes(content)
    content[at] ^= 0xFF
    path.write_bytes(content)
    return path, place.offset, before


def test_a_damaged_block_is_data_loss_and_is_not_kept(start: StartServer, broken_url: str) -> None:
    """It names shard, block and offset; once the store is repaired the same server serves it."""
    path, offset, before = _damage(broken_url, 2)
    running = start(broken_url)

    with pytest.raises(grpc.RpcError) as caught:
        read(running.channel, _REQUEST)

    code, info = failure_of(caught.value)
    assert (grpc.StatusCode.DATA_LOSS, "SHARD_CORRUPT") == (code, info.reason)
    assert ("2", str(offset)) == (info.metadata["block"], info.metadata["offset"])
    assert path.name in info.metadata["shard"]

    path.write_bytes(before)
    assert 10 == len(read(running.channel, _REQUEST).batches)


def test_only_streams_that_need_the_block_fail(start: StartServer, broken_url: str) -> None:
    """A stream whose samples lie elsewhere goes on, though the same server met the damage."""
    with open_dataset(broken_url) as dataset:
        last = dataset.block_count - 1
        first_bad = dataset.block_sample_range(last)[0]
    _damage(broken_url, last)
    running = start(broken_url)
    request = pb.ReadBatchesRequest()
    request.CopyFrom(_REQUEST)
    request.order.shuffle = False
    request.global_batch_size = 50

    seen, failure = read_until_failure(messages_of(running.channel, request))

    whole = transcript(iter(seen))
    assert list(range(first_bad // 50 * 50)) == [i for ids in whole.ids for i in ids]
    assert failure_of(failure)[1].reason == "SHARD_CORRUPT"


def test_a_missing_shard_ends_the_stream(start: StartServer, broken_url: str) -> None:
    """A shard that is gone is an error by name, not an end of the epoch."""
    running = start(broken_url)
    for shard in (Path(broken_url) / "shards").iterdir():
        shard.unlink()

    with pytest.raises(grpc.RpcError) as caught:
        read(running.channel, _REQUEST)

    code, info = failure_of(caught.value)
    assert (grpc.StatusCode.NOT_FOUND, "OBJECT_NOT_FOUND") == (code, info.reason)


def test_bugs_say_nothing_of_the_inside(
    rich_url: str, start: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception is INTERNAL with a text of its own; the log has the traceback."""
    running = start(rich_url)
    running.server._catalog.get("rich").source.reader = _Buggy()

    with pytest.raises(grpc.RpcError) as caught:
        read(running.channel, _REQUEST)

    code, info = failure_of(caught.value)
    assert (grpc.StatusCode.INTERNAL, "INTERNAL") == (code, info.reason)
    assert "secret" not in str(caught.value.details()) + str(info)
    assert "secret inside" in caplog.text


class _Buggy:
    def read_block(self, block: int) -> pa.RecordBatch:
        raise RuntimeError(f"secret inside of block {block}")


class _Gated:
    """A store that answers when told to."""

    def __init__(self, dataset: OpenDataset) -> None:
        self._dataset = dataset
        self.open = threading.Event()
        self.asked = threading.Event()
        self.reads = 0

    def read_block(self, block: int) -> pa.RecordBatch:
        self.reads += 1
        self.asked.set()
        assert self.open.wait(60)
        return self._dataset.read_block(block)


class _Bench:
    """One stream over a gated store, without gRPC."""

    def __init__(self, url: str, *, store_timeout_s: float = 30.0) -> None:
        self.cache = BlockCache(1 << 24, fetch_threads=2, observer=Metrics())
        self.dataset = open_dataset(url)
        served = ServedDataset("rich", self.dataset, cache=self.cache, max_batch_bytes=1 << 24)
        self.store = _Gated(self.dataset)
        served.source.reader = self.store
        served.source.run_blocks = 1
        self.source = served.source
        self.stream = BatchStream(
            stream_contents(NO_STAGES.of_batches(_REQUEST), served),
            dataset=served.name,
            blocks=served.blocks(self.cache),
            limits=StreamLimits(
                heartbeat_s=0.02,
                store_timeout_s=store_timeout_s,
                stage_timeout_s=60.0,
                lifetime_s=0,
                max_batch_bytes=1 << 24,
                prefetch_bytes=lambda: 1 << 20,
            ),
            observer=StreamTally(Metrics().streams, "rich", None),
        )

    def messages(self) -> Iterator[pb.ReadBatchesResponse]:
        return map(pb.ReadBatchesResponse.FromString, self.stream.messages())

    def close(self) -> None:
        self.store.open.set()
        self.cache.close()
        self.dataset.close()

    def pins(self) -> int:
        return int(self.cache._slots.pins.sum())


@pytest.fixture
def bench(rich_url: str) -> Iterator[_Bench]:
    """One stream whose store waits to be told."""
    made = _Bench(rich_url)
    yield made
    made.close()


def test_a_waiting_stream_gives_signs_of_life(bench: _Bench) -> None:
    """While the store is silent heartbeats come, with rising waits; then the batches."""
    messages = bench.messages()
    waits = []
    for message in messages:
        if message.WhichOneof("event") == "heartbeat":
            waits.append(message.heartbeat.waiting_ms)
        if len(waits) == 3:
            bench.store.open.set()
            break
    seen = transcript(_with_start(messages))

    assert sorted(waits) == waits
    assert 10 == len(seen.batches)
    assert sorted(i for ids in seen.ids for i in ids) == list(range(RICH_SAMPLES))


def _with_start(messages: Iterator[pb.ReadBatchesResponse]) -> Iterator[pb.ReadBatchesResponse]:
    """Put a start before the rest of a stream whose own was taken."""
    columns = [
        pb.Column(name="number", kind=pb.COLUMN_KIND_TENSOR, element_type=pb.ELEMENT_TYPE_INT64),
        pb.Column(
            name="text",
            kind=pb.COLUMN_KIND_STRING,
            element_type=pb.ELEMENT_TYPE_UINT8,
            nullable=True,
        ),
        pb.Column(
            name="headrace.sample_id",
            kind=pb.COLUMN_KIND_TENSOR,
            element_type=pb.ELEMENT_TYPE_INT64,
        ),
    ]
    yield pb.ReadBatchesResponse(start=pb.StreamStart(columns=columns))
    yield from messages


def test_a_silent_store_is_given_up(rich_url: str) -> None:
    """After the time-out the stream ends with STORE_UNAVAILABLE, which the client retries."""
    bench = _Bench(rich_url, store_timeout_s=0.1)
    try:
        with pytest.raises(StoreUnavailableError, match="'rich' delivered none of"):
            list(bench.messages())
    finally:
        bench.close()


@pytest.mark.parametrize("how", ["cancel", "interrupt", "close"])
def test_a_waiting_stream_ends_at_once(bench: _Bench, how: str) -> None:
    """Cancel, drain and a closed generator end a wait, drop what was asked, and leave no pins."""
    messages = bench.stream.messages()
    next(messages)
    next(messages)
    assert bench.store.asked.wait(60)

    if how == "close":
        messages.close()
    elif how == "cancel":
        bench.stream.cancel()
        rest = [pb.ReadBatchesResponse.FromString(message) for message in messages]
        assert {"heartbeat"} >= {message.WhichOneof("event") for message in rest}
    else:
        bench.stream.interrupt(DrainingError("x"))
        with pytest.raises(DrainingError):
            list(messages)

    bench.store.open.set()
    bench.cache.close()
    assert 0 == bench.pins()
    # Two threads each had one block on its way; all others were dropped.
    assert bench.store.reads <= 4


def test_corruption_is_told_to_every_stream_that_waits(broken_url: str) -> None:
    """Two streams that wait for the same bad block both get its error, from one fetch."""
    _damage(broken_url, 0)
    bench = _Bench(broken_url)
    bench.store.open.set()
    waiters = [bench.cache.readers.waiter(), bench.cache.readers.waiter()]
    blocks = np.array([0])
    try:
        for waiter in waiters:
            with (
                pytest.raises(ShardCorruptError),
                bench.cache.demand(bench.source, blocks, waiter),
            ):
                bench.cache.arrivals(bench.source, waiter, timeout_s=60)
        assert 0 == bench.cache.used_bytes
    finally:
        bench.close()
