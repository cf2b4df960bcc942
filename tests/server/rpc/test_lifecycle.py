"""Tests of a server's life: start, limits, drain, cancel, end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast
from urllib.request import urlopen

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.errors import ConfigurationError, NotADatasetError
from headrace.server import Server, ServerConfig, start_server
from headrace.server.cache.block_cache import BlockCache
from headrace.server.stream import open_streams
from headrace.server.stream.batch_stream import BatchStream
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.running import Running, channel_of, server_of
from support.served import (
    TIMEOUT_S,
    detail,
    failure_of,
    messages_of,
    read,
    read_until_failure,
    stub_of,
)

_ENDLESS = pb.ReadBatchesRequest(
    dataset="rich",
    global_batch_size=500,
    world_size=1,
    epoch_start=pb.EpochStart(),
)


_LITTLE_ON_THE_WAY = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 14),
    ("grpc.use_local_subchannel_pool", 1),
)


def _health(channel: grpc.Channel, service: str) -> health_pb2.HealthCheckResponse.ServingStatus:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    return cast(
        "health_pb2.HealthCheckResponse.ServingStatus",
        stub.Check(request, timeout=TIMEOUT_S).status,
    )


def _threads() -> set[str]:
    return {
        thread.name.rsplit("-", 1)[0]
        for thread in threading.enumerate()
        if thread.name.startswith("headrace")
    }


def _eventually(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> bool:
    """Poll until something that other threads bring about holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.01)
    return True


class _StuckCache(BlockCache):
    """A cache that says that it cannot be closed."""

    def close(self) -> None:
        super().close()
        raise OSError("cannot be closed")


def test_what_cannot_be_closed_keeps_nothing_else_open(rich_url: str) -> None:
    """The server has ended all the same: no thread is left, and the port is free."""
    before = _threads()
    config = ServerConfig(
        datasets={"rich": rich_url}, listen="127.0.0.1:0", metrics_listen="127.0.0.1:0"
    )
    metrics = Metrics()
    server = Server(
        config,
        cache=_StuckCache(1 << 20, fetch_threads=1, observer=metrics),
        metrics=metrics,
    )
    server.start()
    host, _, port = server.metrics_address.rpartition(":")

    with pytest.raises(OSError, match="cannot be closed"):
        server.stop()

    assert server.wait(0)
    assert before == _threads()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), TIMEOUT_S)


def test_streams_work_ahead_only_while_they_are_few(start: StartServer) -> None:
    """Each has a thread for that while they are no more than processors, and else none has.

    However early it came: those that keep theirs would get more than the others.
    """
    running = start(max_stream_s=0)
    processors = os.cpu_count() or 1
    streams = [messages_of(running.channel, _ENDLESS) for _ in range(processors)]

    def threads_ahead() -> int:
        for stream in streams:
            next(stream)
        return [thread.name for thread in threading.enumerate()].count("headrace-ahead")

    assert _eventually(lambda: threads_ahead() == processors, timeout_s=TIMEOUT_S)
    late = messages_of(running.channel, _ENDLESS)
    next(late)
    assert _eventually(lambda: threads_ahead() == 0, timeout_s=TIMEOUT_S)
    late.cancel()  # type: ignore[attr-defined]  # a call

    assert _eventually(lambda: threads_ahead() == processors, timeout_s=TIMEOUT_S)


def test_health_is_told_per_dataset(served: Running) -> None:
    """The server, its service and each dataset are SERVING; an unknown name is NOT_FOUND."""
    serving = health_pb2.HealthCheckResponse.SERVING

    assert [serving] * 3 == [
        _health(served.channel, name) for name in ("", "headrace.v1.ShardService", "rich")
    ]
    with pytest.raises(grpc.RpcError) as caught:
        _health(served.channel, "nothing")
    assert grpc.StatusCode.NOT_FOUND == caught.value.code()


def test_reflection_names_the_services(served: Running) -> None:
    """A tool that knows nothing finds the service."""
    stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")

    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_S)

    names = {service.name for service in answer.list_services_response.service}
    assert {"headrace.v1.ShardService", "grpc.health.v1.Health"} <= names


def test_datasets_are_listed_by_page(rich_url: str) -> None:
    """Pages are sorted by name, chained by tokens, and complete."""
    names = [f"d{number:02d}" for number in range(7)]
    with channel_of(dict.fromkeys(reversed(names), rich_url)) as channel:
        pages: list[list[str]] = []
        token = ""
        while not pages or token:
            request = pb.ListDatasetsRequest(page_size=3, page_token=token)
            answer = stub_of(channel).ListDatasets(request, timeout=TIMEOUT_S)
            pages.append([dataset.name for dataset in answer.datasets])
            token = answer.next_page_token

    assert [names[:3], names[3:6], names[6:]] == pages


def test_a_dataset_is_described(served: Running) -> None:
    """GetDataset gives what the listing gives: columns in storage order, counts, fingerprint."""
    stub = stub_of(served.channel)

    dataset = stub.GetDataset(pb.GetDatasetRequest(name="rich"), timeout=TIMEOUT_S).dataset
    (listed,) = stub.ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S).datasets

    assert listed == dataset
    assert (1000, 5, 32) == (
        dataset.sample_count,
        dataset.shard_count,
        len(dataset.fingerprint),
    )
    assert ["number", "tiny", "flag"] == [column.name for column in dataset.columns][:3]


def test_a_port_in_use_is_one_clear_line(served: Running, rich_url: str) -> None:
    """A second server on the port is refused before it serves anything."""
    with pytest.raises(ConfigurationError, match=r"cannot listen on 127.0.0.1:\d+: it is in use"):
        server_of({"rich": rich_url}, listen=served.server.address)


def test_a_unix_socket_in_use_is_one_clear_line(rich_url: str, tmp_path: Path) -> None:
    """A living server keeps its socket; the socket of a dead one is taken over."""
    config = ServerConfig(datasets={"rich": rich_url}, listen=f"unix:{tmp_path}/s")
    with start_server(config) as first, pytest.raises(ConfigurationError, match="in use"):
        start_server(config)

    assert first.wait(0)
    with start_server(config):
        pass


def test_no_dataset_at_the_url_is_an_error_of_the_start(tmp_path: Path) -> None:
    """A URL that holds no dataset ends the start, and leaves no thread."""
    before = _threads()

    with pytest.raises(NotADatasetError):
        server_of({"x": str(tmp_path)})

    assert before == _threads()


def test_one_stream_too_many_is_told_to_wait(start: StartServer) -> None:
    """Past max_streams a stream is RESOURCE_EXHAUSTED with RetryInfo; one that ends makes room."""
    running = start(max_streams=2)
    streams = [messages_of(running.channel, _ENDLESS) for _ in range(2)]
    for stream in streams:
        next(stream)

    with pytest.raises(grpc.RpcError) as caught:
        read(running.channel, _ENDLESS)

    code, info = failure_of(caught.value)
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT") == (code, info.reason)
    retry = cast("error_details_pb2.RetryInfo", detail(caught.value, "RetryInfo"))
    assert retry.retry_delay.ToTimedelta().total_seconds() > 0
    streams[0].cancel()  # type: ignore[attr-defined]  # a call
    assert _eventually(lambda: running.server._streams.count < 2)
    assert next(messages_of(running.channel, _ENDLESS)).WhichOneof("event") == "start"


def test_a_cancelled_stream_leaves_nothing(start: StartServer) -> None:
    """When clients go, streams, pins and calls go, and the server serves on."""
    running = start()
    for _ in range(5):
        stream = messages_of(running.channel, _ENDLESS)
        for _ in range(4):
            next(stream)
        stream.cancel()  # type: ignore[attr-defined]  # a call

    server = running.server
    assert _eventually(lambda: server._streams.count == 0 and not server._streams._calls)
    assert 0 == int(server._cache._slots.pins.sum())
    assert _health(running.channel, "") == health_pb2.HealthCheckResponse.SERVING


def test_a_stream_that_has_had_its_time_is_sent_away(start: StartServer) -> None:
    """After max_stream_s it ends between two batches with UNAVAILABLE / REBALANCE."""
    running = start(max_stream_s=0.05)

    seen, failure = read_until_failure(messages_of(running.channel, _ENDLESS))

    code, info = failure_of(failure)
    assert (grpc.StatusCode.UNAVAILABLE, "REBALANCE") == (code, info.reason)
    assert _is_whole(seen)


def test_a_stream_that_is_ended_in_a_long_batch_is_told_why(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut without a reason, though its client reads."""
    plan = BatchStream.plan

    def slow_plan(stream: BatchStream) -> object:
        time.sleep(1.5)
        return plan(stream)

    monkeypatch.setattr(open_streams, "GRACE_S", 0.05)
    monkeypatch.setattr(BatchStream, "plan", slow_plan)
    running = start(max_stream_s=0.05)

    seen, failure = read_until_failure(messages_of(running.channel, _ENDLESS))

    code, info = failure_of(failure)
    assert (grpc.StatusCode.UNAVAILABLE, "REBALANCE") == (code, info.reason)
    assert 1 == len(seen)


def test_a_drain_ends_streams_between_two_batches(start: StartServer) -> None:
    """Health first, then DRAINING after a whole batch, then nothing is left."""
    running = start(health_listen="127.0.0.1:0")
    with (
        grpc.insecure_channel(running.server.health_address) as probe,
        # Less than a batch on the way, so that the drain waits for what reads here.
        grpc.insecure_channel(running.server.address, _LITTLE_ON_THE_WAY) as channel,
    ):
        _drain_between_two_batches(running, channel, probe)


def _drain_between_two_batches(
    running: Running, channel: grpc.Channel, probe: grpc.Channel
) -> None:
    assert _health(probe, "rich") == health_pb2.HealthCheckResponse.SERVING
    messages = messages_of(channel, _ENDLESS)
    seen = [next(messages)]

    drained: list[bool] = []
    thread = threading.Thread(
        target=lambda: drained.append(running.server.drain()), name="test-drain"
    )
    thread.start()
    not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
    assert _eventually(lambda: _health(probe, "rich") == not_serving)
    assert thread.is_alive()
    rest, failure = read_until_failure(messages)
    thread.join(60)

    code, info = failure_of(failure)
    assert (grpc.StatusCode.UNAVAILABLE, "DRAINING") == (code, info.reason)
    assert _is_whole(seen + rest)
    assert [True] == drained
    assert running.server.wait(0)


def test_a_drain_is_bounded(start: StartServer) -> None:
    """A client that does not read is cut when drain_s is over."""
    running = start(drain_s=0.3)
    # Stock flow control lets a few messages of 2 MiB in, and then the stream stands.
    stream = messages_of(running.channel, _ENDLESS)
    next(stream)
    threading.Event().wait(0.2)

    began = time.monotonic()
    running.server.drain()

    assert time.monotonic() - began < 60
    with pytest.raises(grpc.RpcError):
        list(stream)


def test_a_stopped_server_leaves_no_thread(rich_url: str) -> None:
    """Every thread that a server began ends with it."""
    before = _threads()

    with (
        server_of({"rich": rich_url}, metrics_listen="127.0.0.1:0") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stream = messages_of(channel, _ENDLESS)
        next(stream)
        assert "headrace-fetch" in _threads()

    assert before == _threads()
    server.stop()


def test_metrics_tell_what_was_sent(start: StartServer) -> None:
    """Counters rise by what a stream sent, and every help says something."""
    running = start(metrics_listen="127.0.0.1:0")
    request = pb.ReadBatchesRequest()
    request.CopyFrom(_ENDLESS)
    request.epoch_count = 1
    read(running.channel, request)
    assert _eventually(lambda: running.server._streams.count == 0)

    with urlopen(f"http://{running.server.metrics_address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()

    assert 'headrace_sent_batches_total{dataset="rich"} 2.0' in lines
    assert 'headrace_sent_samples_total{dataset="rich"} 1000.0' in lines
    assert 'headrace_ended_streams_total{dataset="rich",reason="OK"} 1.0' in lines
    assert "headrace_open_streams 0.0" in lines
    helps = [line.split(maxsplit=3) for line in lines if line.startswith("# HELP headrace_")]
    assert all(len(words) == 4 for words in helps)


_SERVE = """
import sys
from headrace.server import ServerConfig, serve
config = ServerConfig(datasets={"rich": sys.argv[1]}, listen="127.0.0.1:0", drain_s=20)
sys.exit(serve(config, on_ready=lambda address: print(address, flush=True)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_process(rich_url: str, number: signal.Signals) -> None:
    """`serve` prints its address, ends its streams on a signal, and the process with 0."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, rich_url], stdout=subprocess.PIPE, env=os.environ, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with grpc.insecure_channel(address) as channel:
            messages = messages_of(channel, _ENDLESS)
            next(messages)
            process.send_signal(number)
            _, failure = read_until_failure(messages)

        assert failure_of(failure)[1].reason == "DRAINING"
        assert 0 == process.wait(60)


def _is_whole(messages: list[pb.ReadBatchesResponse]) -> bool:
    """Whether the last batch among the messages is complete."""
    left = 0
    for message in messages:
        if message.WhichOneof("event") == "batch":
            assert not left
            left = message.batch.payload_bytes
        left -= len(message.payload)
    return not left
