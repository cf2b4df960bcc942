"""Tests of what bounds the steps of a batch: who has gone, time, and the heads of images."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import any_pb2
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from headrace.bench.children import serving
from headrace.server.stages.images.image_work import scan_count
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import transforms_pb2 as transforms_pb
from headrace.v1.stages import packed
from support.bombs import claimed_png, scanned_jpeg
from support.datasets import write_dataset
from support.running import channel_of, server_of
from support.served import epoch_request, failure_of, messages_of, read_until_failure, stub_of
from support.waiting import seconds_until, until

_SIDE = 2500
"""Of an image that takes a tenth of a second to decode."""
_ROWS = 100
_SOON_S = 2.0
_TESTS = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Datasets of images: large ones, some that only claim to be, and one of many scans."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((_SIDE, _SIDE, 3), np.uint8)).save(file, "PNG", compress_level=1)
    columns = {
        "large": [file.getvalue()] * _ROWS,
        "claimed": [claimed_png(8000, 8000)] * 80,
        "scanned": [scanned_jpeg(3000, 400)],
    }
    urls = {}
    for name, photos in columns.items():
        urls[name] = str(tmp_path_factory.mktemp("images") / name)
        table = pa.table({"photo": pa.array(photos, pa.binary())})
        write_dataset(urls[name], table, shard_samples=[len(photos)], block_bytes=1 << 20)
    return urls


@pytest.fixture
def opened(urls: dict[str, str]) -> Iterator[grpc.Channel]:
    """A server that gives a step half a second."""
    with channel_of(urls, heartbeat_s=0.1, stage_timeout_s=0.5) as channel:
        yield channel


def _request(dataset: str, rows: int, step: any_pb2.Any | None = None) -> pb.ReadBatchesRequest:
    decode = packed(images_pb.DecodeImage(column="photo", height=8, width=8))
    return epoch_request(
        dataset=dataset, global_batch_size=rows, stages=[decode if step is None else step]
    )


def _failure(channel: grpc.Channel, request: pb.ReadBatchesRequest) -> tuple[str, str, int]:
    """Return how a stream failed, and its signs of life before that."""
    seen, error = read_until_failure(messages_of(channel, request))
    reason = failure_of(error)[1].reason
    return reason, str(error.details()), sum(each.HasField("heartbeat") for each in seen)


def test_a_step_has_a_deadline(opened: grpc.Channel) -> None:
    """A batch whose step takes longer fails, after signs of life, and says what to do."""
    reason, text, heartbeats = _failure(opened, _request("large", _ROWS))

    assert reason == "STAGE_FAILED"
    assert "worked longer than 0.5 s on a batch, and had started" in text
    assert heartbeats


@pytest.mark.parametrize(
    ("dataset", "rows", "wanted"),
    [("claimed", 80, "the images of the batch"), ("scanned", 1, "scans of 3000 x 3000 pixels")],
)
def test_too_much_work_is_refused_by_the_heads(
    opened: grpc.Channel, dataset: str, rows: int, wanted: str
) -> None:
    """Nothing is decoded before it is known how much it is: these would fail with what they are."""
    reason, text, _ = _failure(opened, _request(dataset, rows))

    assert reason == "STAGE_FAILED"
    assert wanted in text


def test_a_step_ends_with_its_caller(urls: dict[str, str]) -> None:
    """Ten seconds of decoding end between two images when the caller goes."""
    with (
        server_of(urls, heartbeat_s=0.1) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        call: Any = messages_of(channel, _request("large", _ROWS))
        assert any(message.HasField("heartbeat") for message in call)
        call.cancel()

        assert seconds_until(lambda: server.stream_count == 0) < _SOON_S
        server.stop()


_HOLDS = packed(transforms_pb.Transform(name="holds"))


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_no_process_outlives_its_drain(
    urls: dict[str, str], workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server ends within 2 s of its drain, and its processes, whatever its steps do."""
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("PYTHONPATH", str(_TESTS), prepend=os.pathsep)
    monkeypatch.setenv("HANGS_FILE", str(pid_file))
    options = (
        "--drain-s=0.2",
        "--heartbeat-s=0.1",
        f"--workers={workers}",
        "--transform=holds=support.transforms:holds@1",
    )
    with serving(urls, *options) as server, grpc.insecure_channel(server.address) as channel:
        calls: list[Any] = [
            stub_of(channel).ReadBatches(_request("large", _ROWS)),
            stub_of(channel).ReadBatches(_request("large", _ROWS, _HOLDS)),
        ]
        for call in calls:
            assert any(message.HasField("heartbeat") for message in call)
        assert until(lambda: pid_file.exists() and pid_file.read_text())
        server.process.send_signal(signal.SIGTERM)

        assert seconds_until(lambda: server.process.poll() is not None) < 0.2 + _SOON_S
        stuck = Path("/proc") / pid_file.read_text()
        assert seconds_until(lambda: not stuck.exists()) < _SOON_S


@pytest.mark.alone
def test_a_function_that_lets_no_thread_run_ends_with_a_killed_server(
    urls: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ends the process of a transform when its server is gone."""
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("PYTHONPATH", str(_TESTS), prepend=os.pathsep)
    monkeypatch.setenv("HANGS_FILE", str(pid_file))
    with serving(urls, "--transform=holds=support.transforms:holds@1") as server:
        with grpc.insecure_channel(server.address) as channel:
            call: Any = stub_of(channel).ReadBatches(_request("large", 1, _HOLDS))
            next(call)
            assert until(lambda: pid_file.exists() and pid_file.read_text())
            server.process.kill()
        stuck = Path("/proc") / pid_file.read_text()

        assert seconds_until(lambda: not stuck.exists()) < _SOON_S


@given(content=st.lists(st.sampled_from([0xFF, 0xDA, 0, 7]), max_size=1200).map(bytes))
def test_scans_are_counted(content: bytes) -> None:
    """As Python counts what stands there."""
    assert scan_count(memoryview(content)) == content.count(b"\xff\xda")
