"""Tests of the metrics of a running server, as a scrape sees them."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.request import urlopen

from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.running import Running
from support.served import TIMEOUT_S, epoch_request, messages_of, read, read_until_failure
from support.waiting import until

_EPOCH = epoch_request(dataset="rich", global_batch_size=500, rank=1, world_size=2)


def _families(running: Running) -> dict[str, Metric]:
    with urlopen(f"http://{running.server.metrics_address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def _values(running: Running) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in _families(running).values()
        for sample in family.samples
    }


def test_every_metric_says_what_a_bad_value_means(start: StartServer) -> None:
    """Each of ours has a help of two parts: what it is, and what to make of it."""
    families = _families(start(metrics_listen="127.0.0.1:0"))

    ours = {name: family for name, family in families.items() if name.startswith("headrace_")}
    thin = [
        name
        for name, family in ours.items()
        if len(family.documentation.rstrip(".").split(". ")) < 2
    ]
    assert len(ours) >= 20
    assert not thin


def test_a_stream_is_counted(start: StartServer) -> None:
    """Batches, samples, bytes, their latency and its end are counted by dataset."""
    running = start(metrics_listen="127.0.0.1:0")

    seen = read(running.channel, _EPOCH)
    assert until(lambda: running.server._streams.count == 0)
    values = _values(running)

    sent = sum(len(batch.payload) for batch in seen.batches)
    assert 2.0 == values["headrace_sent_batches_total", "rich"]
    assert 500.0 == values["headrace_sent_samples_total", "rich"]
    assert sent == values["headrace_sent_payload_bytes_total", "rich"]
    assert 2.0 == values["headrace_batch_seconds_count", "rich"]
    assert 1.0 == values["headrace_ended_streams_total", "rich", "OK"]
    assert 0.0 == values["headrace_open_streams",]
    assert 0.0 == values["headrace_in_flight_bytes",]
    assert values["headrace_store_fetch_seconds_count", "rich"] > 0
    assert values["headrace_cache_bytes",] > 0
    assert values["process_resident_memory_bytes",] > 0


def test_an_open_stream_tells_who_waits_for_whom(start: StartServer) -> None:
    """Its rank has its waits while it is open: a client that does not read makes one grow."""
    running = start(metrics_listen="127.0.0.1:0")
    request = pb.ReadBatchesRequest()
    request.CopyFrom(_EPOCH)
    request.ClearField("epoch_count")
    stream = messages_of(running.channel, request)
    next(stream)
    next(stream)

    waited = ("headrace_stream_client_wait_seconds_total", "rich", "1")
    # A wait is counted when it ends: let some messages go.
    assert until(lambda: bool(next(stream)) and _values(running).get(waited, 0.0) > 0)
    for hop in ("store", "decode", "server"):
        assert (f"headrace_stream_{hop}_wait_seconds_total", "rich", "1") in _values(running)
    assert 0.0 <= _values(running)["headrace_stalled_seconds_total",]
    stream.cancel()  # type: ignore[attr-defined]  # a call

    assert until(lambda: waited not in _values(running))


def test_refused_calls_are_counted(start: StartServer) -> None:
    """A call for what is not there leaves its reason."""
    running = start(metrics_listen="127.0.0.1:0")
    request = pb.ReadBatchesRequest(dataset="poor", global_batch_size=1, world_size=1)

    read_until_failure(messages_of(running.channel, request))

    assert 1.0 == _values(running)["headrace_failed_calls_total", "DATASET_NOT_FOUND"]


def test_the_build_is_told(start: StartServer) -> None:
    """One series names the versions of what runs."""
    (sample,) = _families(start(metrics_listen="127.0.0.1:0"))["headrace_build_info"].samples

    assert {"version", "python", "grpcio", "pyarrow"} == set(sample.labels)


def test_health_follows_the_store(start: StartServer, broken_url: str, tmp_path: Path) -> None:
    """A dataset whose shards cannot be read turns NOT_SERVING, and SERVING when they can be."""
    running = start(broken_url, metrics_listen="127.0.0.1:0")
    shards, away = Path(broken_url) / "shards", tmp_path / "away"

    def is_serving() -> bool:
        check = health_pb2_grpc.HealthStub(running.channel).Check
        answer = check(health_pb2.HealthCheckRequest(service="rich"), timeout=TIMEOUT_S)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    assert is_serving()
    request = pb.ReadBatchesRequest(
        dataset="rich", global_batch_size=100, world_size=1, epoch_start=pb.EpochStart()
    )

    shutil.move(shards, away)
    for _ in range(3):
        read_until_failure(messages_of(running.channel, request))
    assert until(lambda: not is_serving())
    values = _values(running)
    assert values["headrace_store_fetch_errors_total", "rich", "OBJECT_NOT_FOUND"] >= 3

    shutil.move(away, shards)
    # The stream is held until then: one that ends after its first message may have read nothing.
    again = messages_of(running.channel, request)
    next(again)
    assert until(is_serving)
