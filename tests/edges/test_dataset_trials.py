"""A dataset whose files end the process that reads them is not served, and others are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.errors import ConfigurationError, NotADatasetError
from headrace.server import Server, ServerConfig
from headrace.storage import SourceOptions, StoreOptions, Trial, try_datasets
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import small_table, write_dataset
from support.running import server_of
from support.served import TIMEOUT_S, messages_of, stub_of
from support.waiting import until

# A file system that this process does not know, so that nothing here can run into it; in a child
# it comes by fsspec's own door for plug-ins.
_PLUGIN = """
import numpy, os, time
from pathlib import Path
from fsspec.implementations.memory import MemoryFileSystem

class Trap(MemoryFileSystem):
    protocol = "trap"
    cachable = False
    def find(self, *args, **kwargs): self._spring(args)
    def info(self, *args, **kwargs): self._spring(args)
    def _open(self, *args, **kwargs): self._spring(args)
    def cat_file(self, *args, **kwargs): self._spring(args)
    def _spring(self, args):
        kind = next(k for k in ("abort", "hang", "exhaust", "raise") if k in str(args))
        Path(os.environ["TRAP_PIDS"], str(os.getpid())).touch()
        if kind == "abort": os.abort()
        if kind == "hang": time.sleep(600)
        if kind == "exhaust": numpy.empty(64 << 30, numpy.uint8)  # never touched
        raise ZeroDivisionError("of a plug-in")
"""
_ENTRY_POINTS = "[fsspec.specs]\ntrap = trap_plugin:Trap\n"


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let processes that start now know the file system; the folder names those that met it."""
    plugin = tmp_path / "plugin"
    about = plugin / "trap-1.0.dist-info"
    about.mkdir(parents=True)
    (plugin / "trap_plugin.py").write_text(_PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: trap\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(_ENTRY_POINTS)
    pids = tmp_path / "pids"
    pids.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(plugin))
    monkeypatch.setenv("TRAP_PIDS", str(pids))
    return pids


def _trial(url: str) -> Trial:
    return Trial(url, None, StoreOptions(), SourceOptions())


def _is_alive(pid: str) -> bool:
    return Path("/proc", pid).exists()


@pytest.fixture
def good(tmp_path: Path) -> str:
    """A dataset that can be opened."""
    url = str(tmp_path / "good")
    write_dataset(url, small_table(60), shard_samples=[60])
    return url


@pytest.fixture
def server(good: str) -> Iterator[Server]:
    """A server of it."""
    with server_of({"a": good}) as started:
        yield started


def test_a_crash_takes_the_new_dataset_alone(server: Server, good: str, pids: Path) -> None:
    """Streams of the others go on, what else is new is served, and health names the culprit."""
    request = pb.ReadBatchesRequest(
        dataset="a", global_batch_size=10, world_size=1, epoch_start=pb.EpochStart()
    )
    wanted = ServerConfig(
        datasets={"a": good, "b": "trap://abort", "c": good}, listen="127.0.0.1:0"
    )
    with grpc.insecure_channel(server.address) as channel:
        stream = messages_of(channel, request)
        assert "start" == next(stream).WhichOneof("event")

        assert not server.reload(wanted)

        assert next(stream).WhichOneof("event") in {"batch", "heartbeat"}
        found = stub_of(channel).ListDatasets(pb.ListDatasetsRequest(), timeout=TIMEOUT_S)
        asked = health_pb2.HealthCheckRequest(service="b")
        health = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=TIMEOUT_S)
    assert ["a", "c"] == [one.name for one in found.datasets]
    assert health_pb2.HealthCheckResponse.NOT_SERVING == health.status
    assert 1 == len(list(pids.iterdir()))


def test_each_end_is_told_and_the_rest_goes_on(good: str, tmp_path: Path, pids: Path) -> None:
    """A crash, an exhausted memory, an error of no kind, no dataset, and one that is good."""
    failures = try_datasets(
        {
            "abort": _trial("trap://abort"),
            "exhaust": _trial("trap://exhaust"),
            "raise": _trial("trap://user:secret@raise"),
            "none": _trial(str(tmp_path / "nothing")),
            "good": _trial(good),
        }
    )

    assert {"abort", "exhaust", "raise", "none"} == set(failures)
    assert isinstance(failures["none"], NotADatasetError)
    assert "that process was ended by SIGABRT" in failures["abort"].message
    assert "Unable to allocate 64" in failures["exhaust"].message
    assert "ZeroDivisionError: of a plug-in" in failures["raise"].message
    assert not any("secret" in failure.message for failure in failures.values())
    assert 2 == len(list(pids.iterdir()))


def test_what_hangs_is_left_behind(pids: Path) -> None:
    """It is killed at its deadline."""
    failures = try_datasets({"h": _trial("trap://hang")}, timeout_s=1)

    assert isinstance(failures["h"], ConfigurationError)
    assert "did not finish within 1 s" in failures["h"].message
    assert not any(_is_alive(path.name) for path in pids.iterdir())


def test_a_child_ends_with_its_parent(pids: Path) -> None:
    """Also in the middle of a decoder that never returns."""
    from headrace.storage.open.trial import _Child  # noqa: PLC0415 - its parent is played here

    child = _Child([_trial("trap://hang")])
    until(lambda: any(pids.iterdir()))
    [path] = pids.iterdir()
    child._connection.close()

    assert 1 == child._process.wait(TIMEOUT_S)
    assert not _is_alive(path.name)
