"""A stage in a folder of its own works without a change to any other file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import pyarrow as pa
import pytest

import headrace.server.stages
from headrace.server import Server, ServerConfig, start_server
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed
from server.stages.exercise.negate import NegateOptions
from support.datasets import write_dataset
from support.served import TIMEOUT_S, Transcript, failure_of, read, stub_of

_NUMBERS = [3, -1, 0, 7]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on which the folder of the exercise is installed."""
    url = str(tmp_path_factory.mktemp("exercise") / "d")
    table = pa.table(
        {
            "number": pa.array(_NUMBERS, pa.int32()),
            "least": pa.array([0, 1, -128, 2], pa.int8()),
            "unsigned": pa.array(_NUMBERS[:1] * 4, pa.uint8()),
        }
    )
    write_dataset(url, table, shard_samples=[4])
    with pytest.MonkeyPatch.context() as patch:
        folders = [*headrace.server.stages.__path__, str(Path(__file__).parent)]
        patch.setattr(headrace.server.stages, "__path__", folders)
        config = ServerConfig(
            datasets={"d": url}, listen="127.0.0.1:0", metrics_listen="127.0.0.1:0"
        )
        with start_server(config) as running:
            yield running


def _request(*columns: str, token: bytes = b"") -> pb.ReadBatchesRequest:
    request = pb.ReadBatchesRequest(
        dataset="d",
        order=pb.OrderSpec(shuffle=False),
        global_batch_size=2,
        world_size=1,
        epoch_count=1,
        columns=["number", "least", "unsigned"],
        stages=[packed(NegateOptions(column=column)) for column in columns],
    )
    if token:
        request.resume_token = token
        request.ClearField("order")
    else:
        request.epoch_start.SetInParent()
    return request


def test_it_negates_and_counts(server: Server) -> None:
    """The column that is asked for, and no other."""
    with grpc.insecure_channel(server.address) as channel:
        seen = read(channel, _request("number"))

    assert [-number for number in _NUMBERS] == _numbers(seen)
    with urlopen(f"http://{server.metrics_address}/metrics") as answer:
        assert "negated_total 4.0" in answer.read().decode()


def test_its_token_goes_on_with_it_alone(server: Server) -> None:
    """Another column, or none, is another stage."""
    with grpc.insecure_channel(server.address) as channel:
        token = read(channel, _request("number")).tokens[0]
        assert [0, -7] == _numbers(read(channel, _request("number", token=token)))
        for columns in ((), ("number", "number")):
            assert "TOKEN_SPEC_CHANGED" == _reason(channel, _request(*columns, token=token))


@pytest.mark.parametrize(
    ("column", "reason"),
    [("unsigned", "BAD_COORDINATES"), ("gone", "BAD_COORDINATES"), ("least", "STEP_FAILED")],
)
def test_its_errors_reach_the_client(server: Server, column: str, reason: str) -> None:
    """Those of a request, and those of a batch."""
    with grpc.insecure_channel(server.address) as channel:
        assert reason == _reason(channel, _request(column))


def _numbers(seen: Transcript) -> list[object]:
    return [number for batch in seen.batches for number in batch.values["number"]]


def _reason(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub_of(channel).ReadBatches(request, timeout=TIMEOUT_S))
    return str(failure_of(caught.value)[1].reason)
