"""Tests of datasets that come and go while the server runs, over real streams."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.client import BatchEvent, BatchReader, Deadlines, Place, ReadOptions
from headrace.errors import TokenDatasetChangedError
from headrace.order import OrderSpec
from headrace.server import ConfigSource, Server, ServerConfig, start_server
from headrace.server.process.reload import Reloader
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import small_table, write_dataset
from support.no_descriptors import no_descriptors
from support.served import TIMEOUT_S, failure_of, messages_of, read_until_failure, stub_of
from support.waiting import until

_SAMPLES = 60
_Status = health_pb2.HealthCheckResponse


def _endless(name: str) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset=name, global_batch_size=10, world_size=1, epoch_start=pb.EpochStart()
    )


def _events(stream: Iterator[pb.ReadBatchesResponse], count: int) -> list[str | None]:
    """The kinds of the next messages, without signs of life, which a busy machine may send."""
    kinds: list[str | None] = []
    while len(kinds) < count:
        kind = next(stream).WhichOneof("event")
        kinds += [kind] if kind != "heartbeat" else []
    return kinds


def _names(channel: grpc.Channel) -> list[str]:
    found = stub_of(channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S).datasets
    return [one.name for one in found]


def _health(channel: grpc.Channel, name: str) -> int:
    request = health_pb2.HealthCheckRequest(service=name)
    return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S).status)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two datasets of equal shape and other content."""
    folder = tmp_path_factory.mktemp("reload")
    found = {name: str(folder / name) for name in ("a", "b")}
    for number, url in enumerate(found.values()):
        table = small_table(_SAMPLES + number)
        write_dataset(url, table, shard_samples=[_SAMPLES + number])
    return found


def _config(**datasets: str) -> ServerConfig:
    return ServerConfig(datasets=datasets, listen="127.0.0.1:0", drain_s=10)


@pytest.fixture
def server(urls: dict[str, str]) -> Iterator[Server]:
    """A server of both."""
    with start_server(_config(**urls)) as started:
        yield started


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    """A channel to it."""
    with grpc.insecure_channel(server.address) as opened:
        yield opened


def test_a_dataset_is_added_and_removed(
    server: Server, channel: grpc.Channel, urls: dict[str, str]
) -> None:
    """What a reload names is listed, healthy and served; what it leaves out is not."""
    assert server.reload(_config(**urls, c=urls["b"]))
    assert ["a", "b", "c"] == _names(channel)
    assert _Status.SERVING == _health(channel, "c")
    assert next(messages_of(channel, _endless("c"))).WhichOneof("event") == "start"

    assert server.reload(_config(a=urls["a"]))
    assert ["a"] == _names(channel)
    assert _Status.SERVICE_UNKNOWN == _health(channel, "c")
    with pytest.raises(grpc.RpcError) as caught:
        next(messages_of(channel, _endless("b")))
    assert failure_of(caught.value)[1].reason == "DATASET_NOT_FOUND"


def test_streams_of_a_removed_dataset_end_and_others_go_on(
    server: Server, channel: grpc.Channel, urls: dict[str, str]
) -> None:
    """They end with an error that says so, nothing of the dataset stays cached, others stream."""
    going = messages_of(channel, _endless("a"))
    assert "epoch_end" in _events(going, 10)
    without = server._cache.used_bytes
    ending = messages_of(channel, _endless("b"))
    assert ["start", "batch"] == _events(ending, 2)
    assert server._cache.used_bytes > without

    removed = threading.Thread(target=server.reload, args=[_config(a=urls["a"])], name="test-go")
    removed.start()
    _, failure = read_until_failure(ending)
    removed.join(60)

    code, info = failure_of(failure)
    assert (grpc.StatusCode.NOT_FOUND, "DATASET_NOT_FOUND") == (code, info.reason)
    assert "'b' is no longer served here" in str(failure.details())
    assert without == server._cache.used_bytes
    assert {"batch", "epoch_end"} == set(_events(going, 30))


_LARGE, _EPOCHS, _BATCH = 6000, 100, 100


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of which 100 epochs are far more than any buffer on the way holds."""
    url = str(tmp_path_factory.mktemp("large") / "d")
    write_dataset(url, small_table(_LARGE), shard_samples=[_LARGE])
    return url


def _read_beside(server: Server, wanted: ServerConfig) -> list[BatchEvent]:
    """Read all epochs of ``b``; from the second batch on the server is told what it serves."""
    before = server._catalog.get("b")
    reload = threading.Thread(target=server.reload, args=[wanted], name="test-reload")
    reader = BatchReader(
        [server.address],
        ReadOptions("b", OrderSpec(unit=_BATCH), _BATCH, with_ids=True, end_epoch=_EPOCHS),
        place=Place(),
        deadlines=Deadlines(connect_s=20, silence_s=20, give_up_s=40),
        allocate=lambda size: np.empty(size, dtype=np.uint8),
    )
    seen = []
    try:
        for event in reader.events():
            if isinstance(event, BatchEvent):
                seen.append(event)
                if len(seen) == 2:
                    reload.start()
                    assert until(lambda: server._catalog.get("b") is not before)
    finally:
        reload.join(60)
    return seen


def test_a_trainer_goes_on_with_the_same_content_elsewhere(
    server: Server, urls: dict[str, str], large: str, tmp_path: Path
) -> None:
    """A dataset that moves while it is read is reconnected to, and every batch comes once."""
    moved = str(tmp_path / "moved")
    shutil.copytree(large, moved)
    assert server.reload(_config(a=urls["a"], b=large))

    seen = _read_beside(server, _config(a=urls["a"], b=moved))

    assert list(range(_EPOCHS * _LARGE // _BATCH)) == [event.header.step for event in seen]
    assert moved == server._catalog.get("b").dataset.url.removeprefix("file://")
    assert 1.0 == server._metrics.streams._ended_streams.labels("b", "REBALANCE")._value.get()


def test_a_trainer_is_told_of_other_content(
    server: Server, urls: dict[str, str], large: str
) -> None:
    """Where the name gets other content, a run that goes on from its token is refused."""
    assert server.reload(_config(a=urls["a"], b=large))

    with pytest.raises(TokenDatasetChangedError):
        _read_beside(server, _config(a=urls["a"], b=urls["a"]))


def test_what_cannot_be_opened_harms_nothing(
    server: Server, channel: grpc.Channel, urls: dict[str, str], tmp_path: Path
) -> None:
    """A dataset that is not there is NOT_SERVING until it is; the ones served stay as they are."""
    late = str(tmp_path / "late")
    config = _config(a=urls["a"], b=str(tmp_path / "gone"), c=late)

    assert not server.reload(config)
    assert ["a", "b"] == _names(channel)
    assert [_Status.SERVING, _Status.NOT_SERVING] == [_health(channel, name) for name in "bc"]

    write_dataset(late, small_table(5), shard_samples=[5])
    assert not server.reload(config)
    assert ["a", "b", "c"] == _names(channel)
    assert _Status.SERVING == _health(channel, "c")


def test_other_settings_need_a_restart(
    server: Server, urls: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A reload that changes them says which, and changes the datasets all the same."""
    config = ServerConfig(datasets={"a": urls["a"]}, listen="h:1", drain_s=3)

    assert server.reload(config)

    assert "a restart is needed for: listen, drain_s" in caplog.text
    assert ("a",) == server._catalog.names


def test_a_file_that_cannot_be_read_for_a_moment_is_read_later(
    urls: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it changed only once, when there was no descriptor to read it with."""
    path, new = tmp_path / "headrace.yaml", tmp_path / "new.yaml"
    path.write_text(f"datasets: {{a: {urls['a']}}}")
    new.write_text(f"datasets: {{b: {urls['b']}}}")
    applied: list[list[str]] = []

    def apply(config: ServerConfig) -> bool:
        applied.append(sorted(config.datasets))
        return True

    with Reloader(ConfigSource(file=path), apply, retry_s=0.1):
        with no_descriptors():
            new.replace(path)
            assert until(lambda: "configuration was not changed" in caplog.text)
        assert until(lambda: bool(applied))

    assert [["b"]] == applied


def test_the_file_is_read_again_when_it_changes(urls: dict[str, str], tmp_path: Path) -> None:
    """A changed file and a request are applied; a damaged file is not, and the next one is."""
    path = tmp_path / "headrace.yaml"
    path.write_text(f"datasets: {{a: {urls['a']}}}")
    applied: list[list[str]] = []
    changed = threading.Condition()

    def apply(config: ServerConfig) -> bool:
        with changed:
            applied.append(sorted(config.datasets))
            changed.notify_all()
        return True

    def wait_for(count: int) -> bool:
        with changed:
            return changed.wait_for(lambda: len(applied) == count, 20)

    with Reloader(ConfigSource(file=path), apply) as reloader:
        path.write_text(f"datasets: {{a: {urls['a']}, b: {urls['b']}}}")
        assert wait_for(1)
        path.write_text("datasets: {a: [")
        reloader.request()
        path.write_text(f"datasets: {{b: {urls['b']}}}  # mended")
        assert wait_for(2)
        reloader.request()
        assert wait_for(3)

    assert [["a", "b"], ["b"], ["b"]] == applied
