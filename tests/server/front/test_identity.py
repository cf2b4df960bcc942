"""Tests of who a caller is: a token, a certificate, or else an address; strangers come last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from attacks.http2 import call, connected, header_block
from headrace.server.front.health import LIVE
from headrace.server.stream.open_streams import OpenStreams
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.served import TIMEOUT_S, failure_of, stub_of
from support.waiting import until

_TOKENS = '{"tokens": [{"name": "a", "token": "0123456789abcdef", "datasets": ["*"]}]}'
_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def _check(address: str, service: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S).status)


def test_without_tokens_each_address_is_a_caller(start: StartServer) -> None:
    """The streams of two addresses are those of two callers."""
    running = start()
    host, _, port = running.server.address.rpartition(":")
    request = pb.ReadBatchesRequest(
        dataset="rich", global_batch_size=10, world_size=1, epoch_start=pb.EpochStart()
    )
    block = header_block("/headrace.v1.ShardService/ReadBatches")

    with connected((host, int(port)), source="127.0.0.2") as other:
        other.sendall(call(1, block, request.SerializeToString()))
        stream: Any = stub_of(running.channel).ReadBatches(request, timeout=TIMEOUT_S)
        next(stream)
        streams = running.server._streams
        # What the other connection receives first is about itself, not of its stream.
        assert until(lambda: {"127.0.0.1", "127.0.0.2"} == _callers(streams))

        assert streams.are_others_here("127.0.0.1")
        assert streams.are_others_here("127.0.0.2")
        stream.cancel()


def _callers(streams: OpenStreams) -> set[str]:
    return {name for kind, name in [*streams._admitted_of] if kind == "caller"}


def test_strangers_that_wait_delay_no_known_caller(start: StartServer, tmp_path: Path) -> None:
    """With a hundred half-open checks of strangers, calls with a token are answered."""
    tokens = tmp_path / "tokens.json"
    tokens.write_text(_TOKENS)
    running = start(tokens=str(tokens))
    host, _, port = running.server.address.rpartition(":")
    metadata = (("authorization", "Bearer 0123456789abcdef"),)

    with connected((host, int(port)), source="127.0.0.2") as strangers:
        half_open = (call(one, header_block(_CHECK), None) for one in range(1, 200, 2))
        strangers.sendall(b"".join(half_open))
        ask = stub_of(running.channel).ListDatasets
        for _ in range(50):
            assert ask(pb.ListDatasetsRequest(), timeout=TIMEOUT_S, metadata=metadata).datasets
        check = health_pb2_grpc.HealthStub(running.channel).Check
        answer = check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S, metadata=metadata)

    assert _SERVING == answer.status
    # 16 of them, and what was just answered.
    assert 20 >= running.server._waiting.count


def test_health_has_a_listener_of_its_own(start: StartServer, tmp_path: Path) -> None:
    """It needs no token, serves nothing else, and answers until the very end."""
    tokens = tmp_path / "tokens.json"
    tokens.write_text(_TOKENS)
    running = start(tokens=str(tokens), health_listen="127.0.0.1:0")
    address = running.server.health_address

    assert [_SERVING] * 2 == [_check(address), _check(address, LIVE)]
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        stub_of(channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S)
    assert grpc.StatusCode.UNIMPLEMENTED is caught.value.code()
    running.server._health.enter_graceful_shutdown()
    assert [_NOT_SERVING, _SERVING] == [_check(address), _check(address, LIVE)]


def test_health_can_be_asked_over_a_unix_socket(start: StartServer, tmp_path: Path) -> None:
    """As a sidecar is, which listens on no network."""
    start(health_listen=f"unix:{tmp_path}/health.sock")

    assert _SERVING == _check(f"unix:{tmp_path}/health.sock")


def test_a_server_that_starts_is_live_and_not_ready(
    start: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it opens its datasets it answers already."""
    from headrace.server.rpc.roster import Roster  # noqa: PLC0415

    address, seen = f"unix:{tmp_path}/health.sock", list[int]()
    before: Callable[[Roster], None] = Roster.open_all

    def open_all(roster: Roster) -> None:
        seen.extend([_check(address), _check(address, LIVE)])
        before(roster)

    monkeypatch.setattr(Roster, "open_all", open_all)
    start(health_listen=address)

    assert [_NOT_SERVING, _SERVING] == seen


def test_compressed_requests_are_refused_by_their_headers(start: StartServer) -> None:
    """Whatever they would become; others on the connection go on."""
    running = start()
    ask: Any = running.channel.unary_unary("/headrace.v1.ShardService/ListDatasets", None, None)

    with pytest.raises(grpc.RpcError) as caught:
        ask(bytes(1000), timeout=TIMEOUT_S, compression=grpc.Compression.Gzip)

    assert grpc.StatusCode.UNIMPLEMENTED is caught.value.code()
    assert stub_of(running.channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S)


def test_more_streams_than_a_connection_may_have_are_told_so(start: StartServer) -> None:
    """And an unknown token is a stranger's."""
    running = start(max_streams=256)
    request = pb.ReadBatchesRequest(
        dataset="rich", global_batch_size=10, world_size=1, epoch_start=pb.EpochStart()
    )
    read = stub_of(running.channel).ReadBatches
    streams: list[Any] = [read(request, timeout=TIMEOUT_S) for _ in range(125)]
    told = []
    for stream in streams:
        try:
            next(stream)
        except grpc.RpcError as error:
            told.append(error)
    for stream in streams:
        stream.cancel()

    assert 5 == len(told)
    code, info = failure_of(told[0])
    assert (grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT") == (code, info.reason)
    assert "connection" in str(told[0].details())
