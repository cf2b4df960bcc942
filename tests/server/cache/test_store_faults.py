"""Tests of a real store that misbehaves for real: no wrong sample is sent, and nothing hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.client import BatchEvent, BatchReader, Deadlines, Place, ReadOptions
from headrace.order import OrderSpec
from headrace.server import DatasetConfig, ServerConfig
from headrace.storage import RetryPolicy, StoreOptions
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.proxy import proxied
from support.running import RICH_SAMPLES, Running, server_of
from support.s3 import S3
from support.served import (
    Transcript,
    detail,
    epoch_request,
    failure_of,
    messages_of,
    read,
    read_until_failure,
    transcript,
)
from support.store_proxy import Fault, StoreProxy, store_proxied

_REQUEST = epoch_request(
    dataset="rich",
    order=pb.OrderSpec(seed=5, shuffle_samples=250),
    global_batch_size=100,
    with_ids=True,
    columns=["number", "text"],
)
_HASTY = RetryPolicy(attempts=4, base_s=0.01, cap_s=0.05)

Serve = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def proxy(s3: S3) -> Iterator[StoreProxy]:
    """A proxy before the store."""
    with store_proxied(s3.weed.endpoint) as started:
        yield started


@pytest.fixture
def serve(s3: S3, rich: pa.Table, proxy: StoreProxy) -> Serve:
    """Start servers of a dataset behind the proxy, with a cache far smaller than it."""
    url = s3.url("rich")
    write_dataset(url, rich, shard_samples=(600, 400), block_bytes=65_536)

    @contextmanager
    def serving(
        *, retry: RetryPolicy = _HASTY, read_timeout_s: float = 5, **settings: object
    ) -> Iterator[Running]:
        store = StoreOptions(
            endpoint=proxy.endpoint,
            region="us-east-1",
            access_key=s3.weed.reader_access_key,
            secret_key=s3.weed.reader_secret_key,
            read_timeout_s=read_timeout_s,
            retry=retry,
        )
        with (
            server_of(
                {"rich": DatasetConfig(url=url, store=store)}, cache_bytes=1_000_000, **settings
            ) as server,
            grpc.insecure_channel(server.address) as channel,
        ):
            yield Running(server, channel)

    return serving


def _part(seen: str) -> tuple[str, int, int]:
    """Return the path of a part, its first byte and its last."""
    path, _, wanted = seen.partition(" bytes=")
    first, _, last = wanted.partition("-")
    return path, int(first), int(last)


def _overlap(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]


def _is_right(seen: Transcript, rich: pa.Table) -> bool:
    """Whether every sample that came is the one that its id names."""
    texts = rich.column("text").to_pylist()
    return all(
        batch.ids == batch.values["number"]
        and [texts[number] for number in batch.ids] == batch.values["text"]
        for batch in seen.batches
    )


@pytest.mark.parametrize(
    "fault",
    ["throttle", "reset", pytest.param("cut", marks=pytest.mark.long), "short", "altered"],
)
def test_what_passes_is_not_seen(
    serve: Serve, proxy: StoreProxy, rich: pa.Table, fault: Fault
) -> None:
    """When each part fails once, the epoch is whole and right, and each was asked for again.

    That is blocks, and pages of the table that says where they are.
    """
    with serve() as running:
        proxy.seen.clear()
        proxy.once_each(fault)
        seen = read(running.channel, _REQUEST)

    assert list(range(RICH_SAMPLES)) == sorted(number for ids in seen.ids for number in ids)
    assert _is_right(seen, rich)
    parts = [_part(seen) for seen in proxy.seen]
    assert all(2 <= sum(_overlap(other, part) for other in parts) for part in parts)
    assert any("/manifests/" in part for part in proxy.seen)
    assert any("/shards/part-" in part for part in proxy.seen)


@pytest.mark.parametrize(
    "fault", ["silent", "stall", pytest.param("trickle", marks=pytest.mark.long)]
)
def test_a_connection_that_falls_silent_is_left(
    serve: Serve, proxy: StoreProxy, rich: pa.Table, fault: Fault
) -> None:
    """Before an answer, in its middle, or nearly: the part comes over another connection."""
    with serve(retry=RetryPolicy(), read_timeout_s=2) as running:
        proxy.choose = lambda part: (
            fault if "/shards/part-" in part and not proxy.met[fault] else "pass"
        )
        seen = read(running.channel, _REQUEST)

    assert RICH_SAMPLES == sum(map(len, seen.ids))
    assert _is_right(seen, rich)
    assert 1 <= proxy.met[fault]


def test_silence_is_borne_for_less_than_a_stream_waits() -> None:
    """By default several connections fall silent before a stream gives its store up."""
    store, config = StoreOptions(), ServerConfig(datasets={"rich": "rich"})

    assert 4 * store.read_timeout_s <= store.retry.budget_s < config.store_timeout_s


def test_a_slow_store_is_waited_for(serve: Serve, proxy: StoreProxy, rich: pa.Table) -> None:
    """A store that takes its time gives signs of life, and then all of the epoch."""
    proxy.delay_s = 0.1
    with serve(heartbeat_s=0.03) as running:
        seen = read(running.channel, _REQUEST)

    assert RICH_SAMPLES == sum(map(len, seen.ids))
    assert _is_right(seen, rich)
    assert seen.heartbeats


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ("throttle", grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"),
        pytest.param(
            "cut", grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE", marks=pytest.mark.long
        ),
        ("short", grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"),
        ("altered", grpc.StatusCode.DATA_LOSS, "SHARD_CORRUPT"),
    ],
)
def test_what_stays_ends_the_stream(
    serve: Serve,
    proxy: StoreProxy,
    rich: pa.Table,
    *,
    fault: Fault,
    code: grpc.StatusCode,
    reason: str,
) -> None:
    """When one part fails for good, what came before is right, and the end names the cause."""
    with serve() as running:
        whole = read(running.channel, _REQUEST)
        blocks = [part for part in proxy.seen if "/shards/part-" in part]
        bad = _part(blocks[len(blocks) // 2])
        proxy.choose = lambda part: fault if _overlap(_part(part), bad) else "pass"
        seen, failure = read_until_failure(messages_of(running.channel, _REQUEST))

    found = transcript(iter(seen))
    assert (code, reason) == (failure_of(failure)[0], failure_of(failure)[1].reason)
    assert (detail(failure, "RetryInfo") is not None) == (code is grpc.StatusCode.UNAVAILABLE)
    assert whole.ids[: len(found.ids)] == found.ids
    assert len(found.ids) < len(whole.ids)
    assert _is_right(found, rich)


def _read_through(
    address: str, *, on_batch: Callable[[int], None], deadlines: Deadlines
) -> list[list[int]]:
    """Read an epoch as a trainer does, reconnecting where it must."""
    order = OrderSpec(seed=5, shuffle_samples=250, unit=100)
    reader = BatchReader(
        [address],
        ReadOptions("rich", order, 100, with_ids=True, end_epoch=1),
        place=Place(),
        deadlines=deadlines,
        allocate=lambda size: np.empty(size, dtype=np.uint8),
    )
    ids = []
    for event in reader.events():
        if isinstance(event, BatchEvent):
            ids.append(event.columns["headrace.sample_id"].values.tolist())
            on_batch(len(ids))
    return ids


def _survives_an_outage(serve: Serve, proxy: StoreProxy, *, outage_s: float) -> None:
    back = threading.Timer(outage_s, proxy.come_back)

    def go_down(count: int) -> None:
        if count == 3:
            proxy.go_down()
            back.start()

    with serve(retry=RetryPolicy()) as running:
        expected = read(running.channel, _REQUEST).ids
        deadlines = Deadlines(connect_s=30, silence_s=30, give_up_s=120)
        ids = _read_through(running.server.address, on_batch=go_down, deadlines=deadlines)
    back.join()

    assert expected == ids


def test_a_trainer_survives_a_short_outage(serve: Serve, proxy: StoreProxy) -> None:
    """A store that is away for a second costs a pause and nothing else."""
    _survives_an_outage(serve, proxy, outage_s=1)


@pytest.mark.long
def test_a_trainer_survives_an_outage_of_20_s(serve: Serve, proxy: StoreProxy) -> None:
    """Past the retries of the server the stream ends, and the trainer's client comes back."""
    _survives_an_outage(serve, proxy, outage_s=20)


@pytest.mark.long
def test_a_client_that_vanishes_is_noticed(serve: Serve) -> None:
    """A client whose machine falls silent, without a word, loses its stream within 90 s."""
    request = pb.ReadBatchesRequest()
    request.CopyFrom(_REQUEST)
    request.ClearField("epoch_count")
    with (
        serve(drain_s=120) as running,
        proxied(running.server.address) as between,
        grpc.insecure_channel(between.address) as channel,
    ):
        stream = messages_of(channel, request)
        next(stream)
        between.cut()
        assert running.server._streams.wait_idle(time.monotonic() + 90)
        stream.cancel()  # type: ignore[attr-defined]  # a call
