"""A stage of the order in a folder of its own works without a change to any other file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import pyarrow as pa
import pytest

import headrace.server.order_stages
from headrace.order import decode_token
from headrace.server import Server
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed
from server.order_stages.exercise.even import EvenOptions
from support.datasets import write_dataset
from support.running import server_of
from support.served import TIMEOUT_S, Transcript, failure_of, read, stub_of

_COUNT = 33


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on which the folder of the exercise is installed."""
    url = str(tmp_path_factory.mktemp("exercise") / "d")
    write_dataset(url, pa.table({"number": pa.array(range(_COUNT))}), shard_samples=[9, 24])
    with pytest.MonkeyPatch.context() as patch:
        folders = [*headrace.server.order_stages.__path__, str(Path(__file__).parent)]
        patch.setattr(headrace.server.order_stages, "__path__", folders)
        with server_of({"d": url}, metrics_listen="127.0.0.1:0") as running:
            yield running


def _request(*, is_even: bool = True, rank: int = 0, token: bytes = b"") -> pb.ReadBatchesRequest:
    request = pb.ReadBatchesRequest(
        dataset="d",
        global_batch_size=4,
        rank=rank,
        world_size=2,
        epoch_count=1,
        end=pb.END_MODE_UNEVEN,
        stages=[packed(EvenOptions())] if is_even else [],
    )
    if token:
        request.resume_token = token
    else:
        request.order.seed = 5
        request.epoch_start.SetInParent()
    return request


def test_it_drops_odd_ids_and_counts(server: Server) -> None:
    """Two ranks together read each even sample once."""
    with grpc.insecure_channel(server.address) as channel:
        seen = [read(channel, _request(rank=rank)) for rank in range(2)]

    numbers = [number for each in seen for number in _numbers(each)]
    assert set(range(0, _COUNT, 2)) == set(numbers)
    assert len(set(numbers)) == len(numbers)
    with urlopen(f"http://{server.metrics_address}/metrics") as answer:
        assert "halved_total" in answer.read().decode()


def test_the_rest_after_a_token_is_the_same(server: Server) -> None:
    """On one rank after two, and only with the stage."""
    with grpc.insecure_channel(server.address) as channel:
        whole = [read(channel, _request(rank=rank)) for rank in range(2)]
        token = whole[0].tokens[1]
        assert "1" == decode_token(token).stage("even")
        rest = [read(channel, _request(rank=rank, token=token)) for rank in range(2)]
        assert [_numbers(each)[4:] for each in whole] == [_numbers(each) for each in rest]
        assert "TOKEN_SPEC_CHANGED" == _reason(channel, _request(is_even=False, token=token))
        plain = read(channel, _request(is_even=False)).tokens[0]
        assert "TOKEN_SPEC_CHANGED" == _reason(channel, _request(token=plain))


def test_samples_are_found_where_they_come(server: Server) -> None:
    """An odd one nowhere."""
    with grpc.insecure_channel(server.address) as channel:
        first = _numbers(read(channel, _request()))[0]
        batch = pb.GetBatchRequest(
            dataset="d",
            global_batch_size=4,
            world_size=2,
            order=pb.OrderSpec(seed=5),
            epoch_start=pb.EpochStart(),
            stages=[packed(EvenOptions())],
        )
        found = stub_of(channel).FindSamples(
            pb.FindSamplesRequest(batch=batch, sample_ids=[1, int(str(first))]), timeout=TIMEOUT_S
        )
    assert [(1, 0, 0)] == [(row.sample, row.position, row.rank) for row in found.rows]


def _numbers(seen: Transcript) -> list[object]:
    return [number for batch in seen.batches for number in batch.values["number"]]


def _reason(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub_of(channel).ReadBatches(request, timeout=TIMEOUT_S))
    return str(failure_of(caught.value)[1].reason)
