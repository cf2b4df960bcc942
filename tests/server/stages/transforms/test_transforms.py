"""Tests of transforms: functions of the operator, in processes of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import ConfigurationError
from headrace.order import decode_token, sample_keys
from headrace.server import Finding, ServerConfig, check_config, start_server
from headrace.server.stages.transforms import TransformSettings
from headrace.server.stages.transforms.transform_worker import function_of
from headrace.server.stream.stage_plugs import check_stages
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import transforms_pb2 as transforms_pb
from headrace.v1.stages import packed
from support.command import run
from support.datasets import write_dataset
from support.served import (
    TIMEOUT_S,
    Transcript,
    failure_of,
    messages_of,
    read,
    stub_of,
    transcript,
)

SAMPLES = 60
NAMES = ("noise", "raises", "crashes", "hangs", "drops", "wavers", "lists")
_TESTS = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset with a column of each kind."""
    found = str(tmp_path_factory.mktemp("transforms") / "d")
    numbers = range(SAMPLES)
    item = pa.field("item", pa.int16(), nullable=False)
    table = pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "tokens": pa.array(
                [None if n % 7 == 0 else [n] * (n % 4) for n in numbers], pa.list_(item)
            ),
            "text": pa.array([None if n % 5 == 0 else f"sample {n}" for n in numbers]),
            "grid": pa.array([[[n, 1], [2, -n]] for n in numbers], pa.list_(pa.list_(item, 2), 2)),
            "even": pa.array([n % 2 == 0 for n in numbers]),
        }
    )
    write_dataset(found, table, shard_samples=[20, 40], block_bytes=512)
    return found


_TRANSFORMS = tuple(f"{name}=support.transforms:{name}@1.0" for name in NAMES)


def _config(
    url: str, transforms: tuple[str, ...] = _TRANSFORMS, timeout_s: float = 20.0
) -> ServerConfig:
    settings = TransformSettings(transforms=transforms, transform_timeout_s=timeout_s)
    return ServerConfig(
        datasets={"d": url}, listen="127.0.0.1:0", plugs=(settings,), heartbeat_s=0.5
    )


@pytest.fixture(scope="module")
def channel(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A server with all the functions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(_TESTS), prepend=os.pathsep)
        patch.setenv("HANGS_FILE", str(tmp_path_factory.mktemp("hangs") / "pid"))
        with (
            start_server(_config(url)) as server,
            grpc.insecure_channel(server.address) as opened,
        ):
            yield opened


def test_a_module_that_ends_the_process_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script whose last line is `sys.exit(0)` is told like an import that fails."""
    (tmp_path / "ends_at_once.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ImportError, match="ends the process"):
        function_of("ends_at_once", "crop")


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("no_such_module:crop", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:crop", "AttributeError: module 'json' has no attribute 'crop'"),
        ("math:pi", "is not a callable object"),
        ("os:getcwd", "too many positional arguments"),
    ],
)
def test_a_function_that_cannot_be_used_is_found_at_the_start(
    url: str, function: str, found: str
) -> None:
    """The command and `--check-config` name it, and say what is wrong and what is wanted."""
    good = ("serve", f"d={url}", "--transform", "add=operator:add@1", "--listen", "127.0.0.1:0")
    done = run(*good, "--transform", f"crop={function}@1")

    assert (1, "") == (done.returncode, done.stdout)
    assert f"the transform crop@1 cannot use {function}: " in done.stderr
    assert found in done.stderr
    assert "expected a function of (batch, keys)" in done.stderr


def test_settings_are_checked_with_their_transforms(url: str) -> None:
    """Good ones are listed, and a bad one is told."""

    def checked(*transforms: str) -> list[Finding]:
        return check_config(_config(url, transforms))[1:]

    assert [Finding(True, "good: transforms add=operator:add@1")] == checked("add=operator:add@1")
    assert [False] == [one.is_good for one in checked("add=operator:none@1")]


def _request(name: str, *, version: str = "", **fields: Any) -> pb.ReadBatchesRequest:
    request = pb.ReadBatchesRequest(
        dataset="d",
        order=pb.OrderSpec(seed=9),
        global_batch_size=12,
        world_size=1,
        epoch_count=1,
        with_ids=True,
        stages=[packed(transforms_pb.Transform(name=name, version=version))],
    )
    if "resume_token" not in fields:
        request.epoch_start.SetInParent()
    request.MergeFrom(pb.ReadBatchesRequest(**fields))
    return request


def _rows(seen: Transcript) -> dict[int, dict[str, Any]]:
    return {
        sample: {name: values[row] for name, values in batch.values.items()}
        for batch in seen.batches
        for row, sample in enumerate(batch.ids)
    }


def test_a_transform_sees_and_makes_columns_of_every_kind(channel: grpc.Channel) -> None:
    """Values, nulls and shapes go in and come out; random numbers come of the key alone."""
    seen = read(channel, _request("noise"))

    position = 0
    for batch in seen.batches:
        rows = len(batch.ids)
        keys = sample_keys(9, 0, np.arange(position, position + rows))
        position += rows
        assert (keys >> np.uint64(40)).tolist() == batch.values["noise"]
        for row, n in enumerate(batch.ids):
            found = {name: values[row] for name, values in batch.values.items()}
            assert n == found["number"]
            assert found["tokens"] == ([2 * n] * (n % 4) if n % 7 else [])
            assert found["text"] == (None if n % 5 == 0 else f"SAMPLE {n}")
            assert found["grid"] == [[n, 1], [2, -n]]
            assert found["odd"] == (n % 2 == 1)


def test_a_transform_does_not_depend_on_the_world_size(channel: grpc.Channel) -> None:
    """All ranks together get the rows of one rank, random numbers too, also after a resume."""
    whole = read(channel, _request("noise"))
    parts: dict[int, dict[str, Any]] = {}
    for rank in range(5):
        parts |= _rows(read(channel, _request("noise", rank=rank, world_size=5)))
    rest = read(channel, _request("noise", resume_token=whole.tokens[1]))

    assert _rows(whole) == parts
    assert [batch.payload for batch in whole.batches[2:]] == [
        batch.payload for batch in rest.batches
    ]


def test_a_token_binds_name_and_version(channel: grpc.Channel) -> None:
    """A token of a transform goes on with it alone."""
    token = read(channel, _request("noise")).tokens[0]

    assert "noise@1.0" == decode_token(token).stage("transforms")
    for request in (
        _request("raises", resume_token=token),
        _request("noise", version="2"),
        pb.ReadBatchesRequest(dataset="d", world_size=1, resume_token=token),
    ):
        assert "TOKEN_SPEC_CHANGED" == _refused(channel, request)[0]


def _refused(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        read(channel, request)
    return str(failure_of(caught.value)[1].reason), str(caught.value.details())


@pytest.mark.parametrize(
    ("name", "reason", "text"),
    [
        ("raises", "STAGE_FAILED", "ValueError: the function does not like this batch"),
        ("crashes", "STAGE_FAILED", "killed by signal 9"),
        ("drops", "STAGE_FAILED", "expected as many"),
        ("wavers", "STAGE_FAILED", "always return the same"),
        ("lists", "STAGE_FAILED", "returned a list"),
        ("none", "BAD_COORDINATES", "registered transforms: crashes, drops"),
    ],
)
def test_a_transform_that_fails_is_named(
    channel: grpc.Channel, name: str, reason: str, text: str
) -> None:
    """The error says which and why, twice in a row, and other transforms go on."""
    for _ in range(2):
        found = _refused(channel, _request(name))
        assert reason == found[0]
        assert text in found[1]

    assert 5 == len(read(channel, _request("noise")).batches)


def test_a_transform_that_never_ends_is_ended(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signs of life come until its deadline; then its process is killed, and the error says so."""
    monkeypatch.setenv("PYTHONPATH", str(_TESTS), prepend=os.pathsep)
    monkeypatch.setenv("HANGS_FILE", str(tmp_path / "pid"))
    seen: list[pb.ReadBatchesResponse] = []
    with (
        start_server(_config(url, timeout_s=3.0)) as server,
        grpc.insecure_channel(server.address) as opened,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            seen.extend(messages_of(opened, _request("hangs")))
        pid = int((tmp_path / "pid").read_text())

        assert not Path(f"/proc/{pid}").exists()
    assert "longer than 3 s" in str(caught.value.details())
    assert 2 <= len([message for message in seen if message.HasField("heartbeat")])


def test_a_cancelled_call_leaves_no_process(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a function that never ends goes with its client, and with the server."""
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("PYTHONPATH", str(_TESTS), prepend=os.pathsep)
    monkeypatch.setenv("HANGS_FILE", str(pid_file))
    with (
        start_server(_config(url, timeout_s=60.0)) as server,
        grpc.insecure_channel(server.address) as opened,
    ):
        call = messages_of(opened, _request("hangs"))
        next(call)
        assert _eventually(pid_file.exists)
        assert _eventually(lambda: pid_file.read_text() != "")
        call.cancel()  # type: ignore[attr-defined]  # a call

        pid = int(pid_file.read_text())
        assert _eventually(lambda: not Path(f"/proc/{pid}").exists())


def _eventually(condition: Any) -> bool:
    """Wait for what another process brings about."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_one_batch_goes_through_the_transforms(channel: grpc.Channel) -> None:
    """`GetBatch` sends the bytes of the stream's batch."""
    whole = read(channel, _request("noise"))
    request = pb.GetBatchRequest(
        dataset="d",
        world_size=1,
        with_ids=True,
        resume_token=whole.tokens[0],
        stages=_request("noise").stages,
    )

    call: Any = stub_of(channel).GetBatch(request, timeout=TIMEOUT_S)
    one = transcript(call)

    assert [whole.batches[1].payload] == [batch.payload for batch in one.batches]


@pytest.mark.parametrize(
    "stated", ["noise", "noise=a:b", "noise=a@1", "=a:b@1", "n=a:b c@1", "n" * 41 + "=a:b@1"]
)
def test_what_is_no_transform_is_refused_at_the_start(stated: str) -> None:
    """The operator is told the form."""
    with pytest.raises(ConfigurationError, match="NAME=module:function@version"):
        list(check_stages(_config("/d", (stated,))))


def test_a_module_that_is_not_there_is_named(url: str) -> None:
    """What keeps a function from being loaded reaches the client as its failure."""
    config = _config(url, transforms=("gone=no_such_module:f@1",))
    with (
        start_server(config) as server,
        grpc.insecure_channel(server.address) as opened,
    ):
        reason, text = _refused(opened, _request("gone"))

    assert "STAGE_FAILED" == reason
    assert "ModuleNotFoundError" in text
