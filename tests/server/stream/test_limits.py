"""Tests of what one client can take from the others: threads, time, memory."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.server.access.callers import ANYBODY
from headrace.server.front.calls import Call
from headrace.server.stream.stream_setup import stream_contents
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.command import serving
from support.running import Running
from support.served import TIMEOUT_S, failure_of, messages_of, read, read_until_failure, stub_of

_SLOW_STREAMS = 200


def _endless(batch_size: int) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset="rich", global_batch_size=batch_size, world_size=1, epoch_start=pb.EpochStart()
    )


def _own_channel(running: Running) -> grpc.Channel:
    """A connection of its own, as each client has."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(running.server.address, options=options)


def _answers(running: Running) -> None:
    """The calls that orchestrators and people make, each within a deadline."""
    check = health_pb2_grpc.HealthStub(running.channel).Check
    answer = check(health_pb2.HealthCheckRequest(service="rich"), timeout=TIMEOUT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert stub_of(running.channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S)


def test_streams_and_open_reflection_starve_no_other_call(start: StartServer) -> None:
    """With every stream taken, and more reflection calls open than threads, health answers."""
    running = start(max_streams=3)
    held: queue.Queue[None] = queue.Queue()

    def asked_once() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        held.get(timeout=TIMEOUT_S)

    streams = [messages_of(running.channel, _endless(500)) for _ in range(3)]
    for stream in streams:
        next(stream)
    stub = reflection_pb2_grpc.ServerReflectionStub(running.channel)
    calls = [stub.ServerReflectionInfo(asked_once(), timeout=TIMEOUT_S) for _ in range(12)]
    assert next(calls[0]).list_services_response.service

    for _ in range(12):
        _, failure = read_until_failure(messages_of(running.channel, _endless(500)))
        assert failure_of(failure)[1].reason == "STREAM_LIMIT"
        _answers(running)

    for _ in calls:
        held.put(None)


class _GoneCall:
    """A call whose client leaves while its stream is set up."""

    caller = ANYBODY
    peer = "ipv4:127.0.0.1:9"
    metadata = ()
    is_active = False

    def __init__(self) -> None:
        self.at_end: list[Callable[[], None]] = []

    def on_end(self, callback: Callable[[], None]) -> bool:
        if self.at_end:
            return False
        self.at_end.append(callback)
        return True

    def cut(self, _error: object) -> None:
        pass


def test_a_client_that_leaves_at_once_leaves_nothing_behind(start: StartServer) -> None:
    """The cache keeps no part for a stream that was set up and whose messages nobody read."""
    server = start().server
    call, service = _GoneCall(), server._service
    read = service._stages.of_batches

    assert [] == list(
        service._calls.messages(read, stream_contents, _endless(500), cast("Call", call))
    )
    for callback in call.at_end:
        callback()

    readers = server._cache.readers
    assert (set(), 0) == (readers.streams, readers.job_count)


def test_a_request_too_large_is_refused_and_harms_nobody(start: StartServer) -> None:
    """More than 1 MiB is RESOURCE_EXHAUSTED before it is read, and the connection stays."""
    running = start()
    stream = messages_of(running.channel, _endless(100))
    next(stream)
    request = pb.GetSamplesRequest(dataset="rich", sample_ids=range(1_000_000))

    with pytest.raises(grpc.RpcError) as caught:
        list(stub_of(running.channel).GetSamples(request, timeout=TIMEOUT_S))

    assert grpc.StatusCode.RESOURCE_EXHAUSTED == caught.value.code()
    assert next(_events(stream)) == "batch"
    _answers(running)


def test_no_message_passes_what_clients_take(start: StartServer) -> None:
    """A batch far above 4 MiB comes in messages that a stock client accepts."""
    running = start()
    request = _endless(1000)
    request.epoch_count = 1

    seen = read(running.channel, request)

    assert len(seen.batches[0].payload) > 4 << 20
    assert max(size for batch in seen.batches for size in batch.chunk_sizes) <= 2 << 20


def _seconds_an_epoch(running: Running) -> float:
    request = _endless(100)
    request.epoch_count = 4
    with _own_channel(running) as channel:
        began = time.monotonic()
        for _ in messages_of(channel, request):
            pass
        return time.monotonic() - began


@pytest.fixture
def crowd(start: StartServer) -> Iterator[Running]:
    """A server with 200 streams whose clients took one batch and then stopped reading."""
    running = start(max_streams=_SLOW_STREAMS + 2, max_stream_s=0)
    _seconds_an_epoch(running)  # so that all blocks are cached
    slow = _endless(100)
    slow.columns.append("big")
    with ExitStack() as stack:
        for _ in range(_SLOW_STREAMS):
            stream = messages_of(stack.enter_context(_own_channel(running)), slow)
            stack.callback(stream.cancel)  # type: ignore[attr-defined]  # a call
            assert list(itertools.islice(_events(stream), 2)) == ["start", "batch"]
        yield running


def test_slow_streams_do_not_slow_a_fast_one(crowd: Running, start: StartServer) -> None:
    """Beside 200 stalled streams a fast one keeps most of the speed that it has alone."""
    alone = start()
    _seconds_an_epoch(alone)

    # In turns, and the best of each: what else the machine does only makes an epoch longer.
    pairs = [(_seconds_an_epoch(alone), _seconds_an_epoch(crowd)) for _ in range(15)]

    assert crowd.server._streams.count == _SLOW_STREAMS
    one, beside = map(min, zip(*pairs, strict=True))
    assert one / beside > 0.5, pairs
    _answers(crowd)


def test_a_stalled_stream_holds_a_bounded_part_of_memory(start: StartServer) -> None:
    """A client that does not read stops its own stream: batches are not made in advance for it."""
    running = start(max_stream_s=0)
    stream = messages_of(running.channel, _endless(500))
    next(stream)
    registry = running.server._metrics.registry
    name, labels = "headrace_sent_batches_total", {"dataset": "rich"}

    before = _settled(lambda: registry.get_sample_value(name, labels) or 0.0)

    # What the client's window and one batch of advance take: some MiB, of batches of 2.3 MiB.
    assert before <= 8


def _memory_bytes(process: int, which: str) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(f"{which}:")]
    return int(line.split()[1]) * 1024


def test_memory_stays_within_the_formula(rich_url: str) -> None:
    """The greatest memory of a server with stalled clients is what docs/limits.md allows."""
    streams, cache_bytes, fetch_threads, budget_bytes = 8, 4 << 20, 4, 128 << 20
    read_bytes = 2 << 20  # at most a quarter of the cache for all threads, and a decoded block each
    caching = (f"--cache-bytes={cache_bytes}", f"--fetch-threads={fetch_threads}")
    sending = (f"--max-streams={streams}", f"--payload-bytes={budget_bytes}")
    with serving({"rich": rich_url}, *caching, *sending) as server:
        with grpc.insecure_channel(server.address) as channel:
            request = _endless(1)
            request.epoch_count = 1
            read(channel, request)  # so that what is loaded late is loaded
        idle = _memory_bytes(server.process.pid, "VmRSS")
        with ExitStack() as stack:
            for _ in range(streams):
                options_of = [("grpc.use_local_subchannel_pool", 1)]
                channel = grpc.insecure_channel(server.address, options=options_of)
                stream = messages_of(stack.enter_context(channel), _endless(1000))
                stack.callback(stream.cancel)  # type: ignore[attr-defined]  # a call
                assert list(itertools.islice(_events(stream), 2)) == ["start", "batch"]
            greatest = _settled(lambda: _memory_bytes(server.process.pid, "VmHWM"))

    allowed = cache_bytes + fetch_threads * read_bytes + budget_bytes + streams * (4 << 20)
    assert greatest - idle <= allowed


def _events(stream: Iterator[pb.ReadBatchesResponse]) -> Iterator[str | None]:
    """Yield what comes, but for signs of life: a loaded machine may be slow to read a block."""
    kinds = (message.WhichOneof("event") for message in stream)
    return (kind for kind in kinds if kind != "heartbeat")


def _settled(measure: Callable[[], float]) -> float:
    """Return a measure when it has not changed for a while."""
    still = threading.Event()
    deadline = time.monotonic() + TIMEOUT_S
    before = measure()
    while True:
        still.wait(0.5)
        now = measure()
        if now == before:
            return now
        assert time.monotonic() < deadline
        before = now
