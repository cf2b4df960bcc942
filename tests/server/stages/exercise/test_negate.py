"""A stage in a folder of its own works without a change to any other file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from urllib.request import urlopen

import click
import grpc
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import headrace.server.stages
from headrace.cli.options.objects import ObjectCommand, setting_options
from headrace.client import RemoteDataset, Stage
from headrace.errors import ConfigurationError, TokenSpecChangedError
from headrace.server import (
    ConfigSource,
    Server,
    config_text,
    ignored_variables,
)
from headrace.server.settings.plug_settings import STAGES, PlugSettings, folders_of
from headrace.server.settings.server_config import unchangeable
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed
from server.stages.exercise.negate_stage import Negate, NegateOptions
from support.datasets import write_dataset
from support.running import server_of
from support.served import TIMEOUT_S, Transcript, failure_of, read, stub_of

_NUMBERS = [3, -1, 0, 7]


@pytest.fixture(scope="module", autouse=True)
def negate() -> Iterator[ModuleType]:
    """The folder of the exercise, installed."""
    with pytest.MonkeyPatch.context() as patch:
        folders = [*headrace.server.stages.__path__, str(Path(__file__).parent)]
        patch.setattr(headrace.server.stages, "__path__", folders)
        (found,) = (each for each in folders_of(STAGES) if each.__name__.endswith(".negate"))
        yield found


@pytest.fixture(scope="module")
def server(negate: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has the stage."""
    del negate
    url = str(tmp_path_factory.mktemp("exercise") / "d")
    table = pa.table(
        {
            "number": pa.array(_NUMBERS, pa.int32()),
            "least": pa.array([0, 1, -128, 2], pa.int8()),
            "unsigned": pa.array(_NUMBERS[:1] * 4, pa.uint8()),
        }
    )
    write_dataset(url, table, shard_samples=[4])
    with server_of({"d": url}, metrics_listen="127.0.0.1:0") as running:
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


def test_a_loop_asks_for_it_with_a_class_of_its_own(server: Server) -> None:
    """Its numbers arrive, and a state from before the first batch is one for it alone."""

    def dataset(*stages: Stage) -> RemoteDataset:
        return RemoteDataset(
            server.address, "d", batch_size=2, shuffle=False, epochs=1, stages=stages
        )

    with dataset(Negate("number")) as first, dataset(Negate("number")) as second:
        state = first.state_dict()
        second.load_state_dict(state)
        found = [number for batch in second for number in np.asarray(batch["number"]).tolist()]
    with dataset() as other:
        other.load_state_dict(state)
        with pytest.raises(TokenSpecChangedError, match="negate@1-number"):
            next(iter(other))

    assert [-number for number in _NUMBERS] == found


def test_its_token_goes_on_with_it_alone(server: Server) -> None:
    """Another column, or none, is another stage."""
    with grpc.insecure_channel(server.address) as channel:
        token = read(channel, _request("number")).tokens[0]
        assert [0, -7] == _numbers(read(channel, _request("number", token=token)))
        for columns in ((), ("number", "number")):
            assert "TOKEN_SPEC_CHANGED" == _reason(channel, _request(*columns, token=token))


@pytest.mark.parametrize(
    ("column", "reason"),
    [("unsigned", "BAD_COORDINATES"), ("gone", "BAD_COORDINATES"), ("least", "STAGE_FAILED")],
)
def test_its_errors_reach_the_client(server: Server, column: str, reason: str) -> None:
    """Those of a request, and those of a batch."""
    with grpc.insecure_channel(server.address) as channel:
        assert reason == _reason(channel, _request(column))


def test_its_setting_is_one_of_the_server(negate: ModuleType, tmp_path: Path) -> None:
    """In files, in variables, and on the command line."""
    file = tmp_path / "headrace.yaml"
    file.write_text("datasets: {d: /d}\nnegate_wraps: true\n")
    variables = {"HEADRACE_NEGATE_WRAPS": "yes"}
    flags: dict[str, object] = {"datasets": {"d": "/d"}}

    configs = [
        source.load()
        for source in (
            ConfigSource(flags=flags),
            ConfigSource(file=file),
            ConfigSource(environment=variables, flags=flags),
            ConfigSource(flags={**flags, "negate_wraps": True}),
        )
    ]

    assert [False, True, True, True] == [
        config.of_plug(negate.NegateSettings).negate_wraps for config in configs
    ]
    assert "negate_wraps: true" in config_text(configs[1])
    assert [] == ignored_variables(variables)
    assert ["negate_wraps"] == unchangeable(configs[1], configs[0])
    with pytest.raises(ConfigurationError, match="did you mean negate_wraps"):
        ConfigSource(flags={**flags, "negate_wrap": True}).load()


def test_its_setting_is_an_option() -> None:
    """With the help of its attribute."""

    @click.command(cls=ObjectCommand)
    @setting_options("headrace.server.settings.config_layers:server_settings", leave=())
    def command(**settings: object) -> None:
        click.echo(settings["negate_wraps"])

    runner = CliRunner()
    helped = " ".join(runner.invoke(command, ["--help"]).output.split())

    assert "--negate-wraps / --no-negate-wraps Whether a number whose opposite" in helped
    assert ["True\n", "\n"] == [
        runner.invoke(command, given).output for given in (["--negate-wraps"], [])
    ]


def test_its_setting_cannot_hide_another(
    negate: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two settings of one name are refused before one of them is read for the other."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Hiding(PlugSettings):
        listen: str = ""

    monkeypatch.setattr(negate.Plug, "settings", Hiding)

    with pytest.raises(ConfigurationError, match="two settings are named 'listen'"):
        ConfigSource(flags={"datasets": {"d": "/d"}, "listen": "0.0.0.0:1"}).load()


def _numbers(seen: Transcript) -> list[object]:
    return [number for batch in seen.batches for number in batch.values["number"]]


def _reason(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub_of(channel).ReadBatches(request, timeout=TIMEOUT_S))
    return str(failure_of(caught.value)[1].reason)
